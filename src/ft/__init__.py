"""ft: speculative decoding that provably changes nothing but the speed."""

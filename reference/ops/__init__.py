"""Operations in fp32, one a file: the definitions that the kernels are held against."""

"""What is right: slow fp32 PyTorch, readable like the papers it follows."""

"""The zipccl command's parts."""

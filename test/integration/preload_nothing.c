/* A shared library that is not NCCL. */
__attribute__((visibility("default"))) int preload_nothing(void) { return 0; }

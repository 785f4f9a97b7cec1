// The NCCL interface that a test program of this build is a client of: NVIDIA's where it runs on GPUs, the stand-in's
// elsewhere. Both declare the same names.
#pragma once

#ifdef ZIPCCL_TEST_CUDA
#include <nccl.h>
#else
#include "test/standin/standin_nccl.h"
#endif

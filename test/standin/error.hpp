// Errors inside the stand-in: exceptions that carry NCCL's result, turned into results at the C interface.
#pragma once

#include <stdexcept>
#include <string>

#include "test/standin/standin_nccl.h"

namespace standin {

class Error : public std::runtime_error {
 public:
  Error(ncclResult_t code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ncclResult_t code() const { return code_; }

 private:
  ncclResult_t code_;
};

// A system call's failure; reads errno.
Error system_error(const std::string& what);

// Text of the calling thread's last error, for ncclGetLastError. Also goes to standard error under NCCL_DEBUG.
void set_last_error(const std::string& text);
const char* last_error();

}  // namespace standin

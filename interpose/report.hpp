// The report: one JSON file a process, zipccl-<host>-<pid>.json in the folder that ZIPCCL_REPORT names. Written whole
// and renamed into place. Thread-safe; without ZIPCCL_REPORT every function does nothing.
#pragma once

#include "interpose/comm_table.hpp"

namespace zipccl::interpose::report {

void start();          // with every communicator; the first one registers the write at the process's exit
void tick() noexcept;  // with every call; writes if the last write is ten seconds old
void closed(const CommState& state, const char* fate);  // it has left the table: "destroyed" or "aborted"

}  // namespace zipccl::interpose::report

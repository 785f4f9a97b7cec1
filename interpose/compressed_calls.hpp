// How the process's groups decide and issue what may be compressed.
#pragma once

#include "interpose/group.hpp"

namespace zipccl::interpose {

const EligibleCalls& eligible_calls();

}  // namespace zipccl::interpose

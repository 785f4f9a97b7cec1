// A group's compressed calls on streams of their communicators' own (collectives/own_streams.hpp), so that in a group
// of several communicators none waits for another where NCCL would not have it wait.
#pragma once

#include <memory>
#include <span>

#include "interpose/group.hpp"

namespace zipccl::interpose {

// As EligibleCalls says.
std::unique_ptr<EligibleCalls::Apart> make_apart(std::span<EligibleAllGather> all_gathers,
                                                 std::span<EligibleTransfer> transfers);

}  // namespace zipccl::interpose

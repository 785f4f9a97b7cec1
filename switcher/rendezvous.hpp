// Rendezvous with other limits than the usual ones.
#pragma once

#include <memory>
#include <string>

#include "switcher/limits.hpp"
#include "switcher/session.hpp"

namespace zipccl::switcher {

std::unique_ptr<Rendezvous> create_rendezvous(std::string interfaces, const Limits& limits);

}  // namespace zipccl::switcher

#include "test/model/program.hpp"

#include <algorithm>
#include <cstdio>

namespace zipccl::test {
namespace {

std::string text_of(const char* format, auto... values) {
  char text[200];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::send:
      return "send";
    case Kind::receive:
      return "receive";
    case Kind::all_gather:
      return "all-gather";
    case Kind::all_to_all:
      return "all-to-all";
  }
  return "";
}

std::string describe(const World& world, const Action& action) {
  std::string text = text_of("%s of %zu %s", kind_name(action.kind), action.count, type_name(action.type));
  if (!action.collective()) {
    const auto& members = world.communicators[static_cast<std::size_t>(action.communicator)];
    text += text_of(" %s rank %d", action.kind == Kind::send ? "to" : "from",
                    members[static_cast<std::size_t>(action.peer)]);
  }
  text += text_of(", communicator %d, stream %d", action.communicator, action.stream);
  if (action.sends()) text += text_of(", send at %zu", action.send_offset);
  if (action.receives()) text += text_of(", receive at %zu", action.receive_offset);
  return text + (action.in_place ? ", in place\n" : "\n");
}

std::string describe(const World& world, const Launch& launch) {
  if (launch.step == Launch::Step::wait) {
    return text_of("  stream %d waits for stream %d\n", launch.stream, launch.other);
  }
  if (launch.step == Launch::Step::synchronize) return text_of("  the host waits for stream %d\n", launch.stream);
  std::string text;
  std::string margin = "  ";
  const auto open = [&](int groups) {
    for (int group = 0; group < groups; ++group) {
      text += margin + "group {\n";
      margin += "  ";
    }
  };
  const auto close = [&](int groups) {
    for (int group = 0; group < groups; ++group) {
      margin.resize(margin.size() - 2);
      text += margin + "}\n";
    }
  };
  open(launch.grouped ? 1 : 0);
  for (std::size_t index = 0; index < launch.actions.size(); ++index) {
    if (launch.grouped) open(launch.opens[index]);
    text += margin + describe(world, launch.actions[index]);
    if (launch.grouped) close(launch.closes[index]);
  }
  close(launch.grouped ? 1 : 0);
  return text;
}

}  // namespace

int World::member(int communicator, int rank) const {
  const auto& members = communicators[static_cast<std::size_t>(communicator)];
  const auto found = std::find(members.begin(), members.end(), rank);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

std::size_t Action::part_bytes() const { return count * type_bytes(type); }

std::size_t Action::send_bytes(const World& world) const {
  if (!sends()) return 0;
  return part_bytes() *
         (kind == Kind::all_to_all ? world.communicators[static_cast<std::size_t>(communicator)].size() : 1);
}

std::size_t Action::receive_bytes(const World& world) const {
  if (!receives()) return 0;
  return part_bytes() * (collective() ? world.communicators[static_cast<std::size_t>(communicator)].size() : 1);
}

std::size_t type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

const char* type_name(ncclDataType_t type) {
  switch (type) {
    case ncclBfloat16:
      return "bfloat16";
    case ncclFloat16:
      return "float16";
    case ncclFloat32:
      return "float32";
    case ncclUint8:
      return "uint8";
    case ncclInt64:
      return "int64";
    default:
      return "values";
  }
}

std::string describe(const World& world, const Program& program) {
  std::string text =
      text_of("program '%s', seed %llu", program.name.c_str(), static_cast<unsigned long long>(program.seed));
  if (program.replays > 0) text += text_of(", captured and launched %d times", program.replays);
  text += "\n";
  for (std::size_t index = 0; index < world.communicators.size(); ++index) {
    text += text_of("communicator %zu: ranks", index);
    for (const int rank : world.communicators[index]) text += text_of(" %d", rank);
    text += "\n";
  }
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    text += text_of("rank %zu:\n", rank);
    for (const Launch& launch : program.ranks[rank]) text += describe(world, launch);
  }
  return text;
}

}  // namespace zipccl::test

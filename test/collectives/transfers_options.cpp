#include "test/collectives/transfers_options.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace zipccl::test {

bool parse(int argc, char** argv, TransfersOptions* options) {
  for (int index = 1; index < argc; ++index) {
    const std::string argument = argv[index];
    if (argument == "--share-gpu") {
      options->share_gpu = true;
    } else if (argument == "--large") {
      options->large = true;
    } else if (argument == "--unlike-types") {
      options->unlike_types = true;
    } else if (argument == "--one-way") {
      options->one_way = true;
    } else if (argument == "--soak" && index + 1 < argc) {
      options->soak = std::strtoull(argv[++index], nullptr, 10);
    } else if (argument == "--replays" && index + 1 < argc) {
      options->replays = std::atoi(argv[++index]);
    } else {
      options->ranks = std::atoi(argument.c_str());
    }
  }
  if (options->ranks < 2 || options->ranks > 64) {
    std::fprintf(stderr,
                 "usage: transfers-test RANKS [--share-gpu] [--large] [--unlike-types] [--replays N] [--soak GROUPS] "
                 "[--one-way]\n");
    return false;
  }
  return true;
}

}  // namespace zipccl::test

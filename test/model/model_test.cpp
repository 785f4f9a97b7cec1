// The model-based test: random legal programs of sends, receives, all-to-alls and all-gathers, run by an ordinary
// client of NCCL, with libzipccl.so preloaded or without. A model says what they leave in memory; every byte is
// compared. A program that does not end is a failure, too. The failing program and its seed are printed.
//
//   model-test RANKS [--seed N] [--programs N] [--seconds N] [--no-fixed] [--no-graphs] [--host-waits] [--print]
//              [--share-gpu] [--must-compress COLLECTIVE,...]
//
// --seed: of the communicators and of the first program; the others have the seeds that follow. --world N: another seed
// for the communicators, so that --world W --seed S --programs 1 --no-fixed repeats one program of a run. --seconds:
// for one program. --host-waits: programs that cannot block although calls do. --must-compress: names as in zipccl's
// report (ZIPCCL_REPORT), of which calls must have gone compressed.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "test/model/generate.hpp"
#include "test/model/runner.hpp"
#include "test/support/report.hpp"

namespace zipccl::test {
namespace {

constexpr int failures_counter = 0;  // shared counters
constexpr int programs_counter = 1;
constexpr int actions_counter = 2;

struct Options {
  int ranks = 0;
  std::uint64_t seed = 1;
  std::uint64_t world = 0;
  bool world_given = false;
  std::uint64_t programs = 50;
  unsigned seconds = 30;
  bool fixed = true;
  bool print = false;
  bool share_gpu = false;
  std::string must_compress;
  GeneratorOptions generator;
};

// For the signal handler: what to say if the program at hand does not end.
std::string stuck_text;
std::atomic<std::uint64_t>* stuck_failures = nullptr;

void on_alarm(int) {
  if (stuck_failures->fetch_add(1) == 0 && write(STDERR_FILENO, stuck_text.data(), stuck_text.size()) < 0) _exit(5);
  _exit(4);
}

// Ends the process if the program goes wrong.
void run_program(const Rank& rank, const World& world, Runner* runner, const Program& program, const Options& options) {
  const std::string text = describe(world, program);
  if (options.print && rank.rank() == 0) std::printf("%s\n", text.c_str());
  stuck_text = "STUCK on rank " + std::to_string(rank.rank()) + ": " + text;
  alarm(options.seconds);
  const std::string wrong = runner->run(program);
  alarm(0);
  rank.counter(programs_counter).fetch_add(1);
  for (const Launch& launch : program.ranks[static_cast<std::size_t>(rank.rank())]) {
    rank.counter(actions_counter).fetch_add(launch.actions.size());
  }
  if (wrong.empty()) return;
  if (rank.counter(failures_counter).fetch_add(1) == 0) {
    std::fprintf(stderr, "WRONG on rank %d, %s\n%s", rank.rank(), wrong.c_str(), text.c_str());
  }
  std::fflush(nullptr);
  std::_Exit(1);  // the others may wait for this rank
}

// Made once, before the ranks are.
struct Plan {
  World world;
  std::vector<Program> programs;

  explicit Plan(const Options& options)
      : world(make_world(options.ranks, options.world_given ? options.world : options.seed)) {
    if (options.fixed) programs = fixed_programs(world, options.generator);
    for (std::uint64_t index = 0; index < options.programs; ++index) {
      programs.push_back(make_program(world, options.seed + index, options.generator));
    }
  }
};

int run_rank(const Rank& rank, const Plan& plan, const Options& options) {
  stuck_failures = &rank.counter(failures_counter);
  std::signal(SIGALRM, on_alarm);
  stuck_text = "STUCK on rank " + std::to_string(rank.rank()) + " while communicators were created\n";
  alarm(options.seconds + 60);
  Runner runner(rank, plan.world);
  for (const Program& program : plan.programs) run_program(rank, plan.world, &runner, program, options);
  stuck_text = "STUCK on rank " + std::to_string(rank.rank()) + " while communicators were destroyed\n";
  alarm(options.seconds);
  return 0;
}

int check_report(const std::string& collectives) {
  const char* folder = std::getenv("ZIPCCL_REPORT");
  std::istringstream names(collectives);
  int missing = 0;
  for (std::string name; std::getline(names, name, ',');) {
    const std::uint64_t calls = folder == nullptr ? 0 : reported_calls(folder, "compressed", name);
    std::printf("%s: %llu compressed calls\n", name.c_str(), static_cast<unsigned long long>(calls));
    missing += calls == 0 ? 1 : 0;
  }
  return missing;
}

int run(const Options& options) {
  if (const char* folder = std::getenv("ZIPCCL_REPORT"); folder != nullptr) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  const Plan plan(options);
  RankGroup group(options.ranks, options.share_gpu);
  const int failed = group.run([&](const Rank& rank) { return run_rank(rank, plan, options); }, 3600);
  const auto ranks = static_cast<std::uint64_t>(options.ranks);
  std::printf("%d ranks, seeds from %llu: %llu programs of %llu calls, %d ranks failed\n", options.ranks,
              static_cast<unsigned long long>(options.seed),
              static_cast<unsigned long long>(group.counter(programs_counter) / ranks),
              static_cast<unsigned long long>(group.counter(actions_counter)), failed);
  return failed != 0 || check_report(options.must_compress) != 0 ? 1 : 0;
}

bool parse(int argc, char** argv, Options* options) {
  for (int index = 1; index < argc; ++index) {
    const std::string argument = argv[index];
    const bool valued = index + 1 < argc;
    const auto number = [&] { return std::strtoull(argv[++index], nullptr, 10); };
    if (argument == "--seed" && valued) {
      options->seed = number();
    } else if (argument == "--world" && valued) {
      options->world = number();
      options->world_given = true;
    } else if (argument == "--programs" && valued) {
      options->programs = number();
    } else if (argument == "--seconds" && valued) {
      options->seconds = static_cast<unsigned>(number());
    } else if (argument == "--must-compress" && valued) {
      options->must_compress = argv[++index];
    } else if (argument == "--no-fixed") {
      options->fixed = false;
    } else if (argument == "--no-graphs") {
      options->generator.graphs = false;
    } else if (argument == "--host-waits") {
      options->generator.schedule.host_waits = true;
    } else if (argument == "--print") {
      options->print = true;
    } else if (argument == "--share-gpu") {
      options->share_gpu = true;
    } else {
      options->ranks = std::atoi(argument.c_str());
      if (options->ranks < 2) return false;
    }
  }
  return options->ranks >= 2 && options->ranks <= 64;
}

}  // namespace
}  // namespace zipccl::test

int main(int argc, char** argv) {
  zipccl::test::Options options;
  if (!zipccl::test::parse(argc, argv, &options)) {
    std::fprintf(
        stderr,
        "usage: model-test RANKS [--seed N] [--world N] [--programs N] [--seconds N] [--no-fixed] [--no-graphs]\n"
        "                  [--host-waits] [--print] [--share-gpu] [--must-compress COLLECTIVE,...]\n");
    return 2;
  }
  return zipccl::test::run(options);
}

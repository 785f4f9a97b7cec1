#include "test/unit/session_fixture.hpp"

#include <sys/resource.h>

#include <barrier>

namespace zipccl::test {

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::vector<Outcome> run_ranks(switcher::Rendezvous& rendezvous, const UniqueId& id, std::uint32_t rank_count,
                               const std::function<switcher::Hello(std::uint32_t)>& hello_of,
                               const std::function<bool(std::uint32_t)>& joins) {
  raise_descriptor_limit();
  std::vector<Outcome> outcomes(rank_count);
  std::barrier real_init(static_cast<std::ptrdiff_t>(rank_count));
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < rank_count; ++rank) {
    threads.emplace_back([&, rank] {
      Outcome& outcome = outcomes[rank];
      std::unique_ptr<switcher::Session> session;
      if (joins(rank)) outcome.hello = rendezvous.hello(invited(id), hello_of(rank), &session, &outcome.why);
      real_init.arrive_and_wait();
      if (session) outcome.verdict = session->verdict(&outcome.answer);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace zipccl::test

// The fences of one communicator and rank, on its channel and the helper thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "switcher/channel.hpp"
#include "switcher/fence_gate.hpp"
#include "switcher/session.hpp"

namespace zipccl::switcher {

// Thread-safe.
class Fences final : public Poller {
 public:
  // `rendezvous` and `channel` must outlive the object.
  Fences(Rendezvous& rendezvous, Channel& channel, std::uint32_t own_rank);
  ~Fences() override;
  // Once: hears the peers from now on. Errors are those of Rendezvous::add.
  Status start();
  Fences(const Fences&) = delete;
  Fences& operator=(const Fences&) = delete;

  // A class's gate, made when first asked for; it lives as long as this object. What peers said of the class before is
  // not lost. `participants` and `initial` as for Fence.
  FenceGate& gate(const FenceClass& fence_class, const std::vector<std::uint32_t>& participants,
                  const FenceSetting& initial);
  void abort();  // of all gates; those made later begin aborted

  bool poll() override;

 private:
  // One class's way out.
  class Sender final : public FenceTransport {
   public:
    Sender(Fences* fences, const FenceClass& fence_class) : fences_(fences), fence_class_(fence_class) {}
    Status send(std::uint32_t receiver, const FenceMessage& message) override;

   private:
    Fences* const fences_;
    const FenceClass fence_class_;
  };
  struct Entry {
    Entry(Fences* fences, const FenceClass& fence_class, const std::vector<std::uint32_t>& participants,
          std::uint32_t own_rank, const FenceSetting& initial)
        : sender(fences, fence_class), gate(participants, own_rank, initial, &sender) {}
    Sender sender;
    FenceGate gate;
  };

  void take_event(const FenceEvent& event);

  Rendezvous& rendezvous_;
  Channel& channel_;
  const std::uint32_t own_rank_;
  std::atomic<bool> send_again_ = false;
  std::mutex mutex_;
  std::map<FenceClass, std::unique_ptr<Entry>> entries_;
  std::map<FenceClass, std::vector<std::pair<std::uint32_t, FenceMessage>>> early_;  // of classes without gate
  std::vector<std::uint32_t> lost_;
  bool aborted_ = false;
};

}  // namespace zipccl::switcher

// Joins a communicator's overflow port with the switcher's channel and helper thread.
#pragma once

#include <cstdint>
#include <memory>

#include "collectives/overflow_port.hpp"
#include "switcher/session.hpp"

namespace zipccl::interpose {

class OverflowLink final : public collectives::RecordTransport, public switcher::Poller {
 public:
  // Opens the port and has the helper thread look after it. All three must outlive the link. Errors are
  // those of Rendezvous::add.
  static Status open(switcher::Rendezvous& rendezvous, switcher::Channel& channel, collectives::OverflowPort& port,
                     std::uint32_t own_rank, std::uint32_t rank_count, std::unique_ptr<OverflowLink>* link);
  ~OverflowLink() override;
  OverflowLink(const OverflowLink&) = delete;
  OverflowLink& operator=(const OverflowLink&) = delete;

  collectives::OverflowPort& port() { return port_; }
  const collectives::OverflowPort& port() const { return port_; }
  std::uint64_t buffered_bytes() const { return channel_.buffered_bytes(); }

  Status send(std::uint32_t receiver, const collectives::RecordId& id, Record record) override;
  Found find(const collectives::RecordId& id, Record* record) override;
  void drop(const collectives::RecordId& id) override;
  bool flushed() const override { return channel_.flushed(); }
  void wake() override { rendezvous_.wake(); }

  bool poll() override;

 private:
  OverflowLink(switcher::Rendezvous& rendezvous, switcher::Channel& channel, collectives::OverflowPort& port,
               std::uint32_t own_rank, std::uint32_t rank_count);

  switcher::Rendezvous& rendezvous_;
  switcher::Channel& channel_;
  collectives::OverflowPort& port_;
  std::uint32_t own_rank_;
  std::uint32_t rank_count_;
};

}  // namespace zipccl::interpose

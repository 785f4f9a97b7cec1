// One rank's way into a communicator: what it can do, hello, the real init, the verdict.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "interpose/comm_table.hpp"
#include "switcher/session.hpp"

namespace zipccl::interpose {

class Creation {
 public:
  // `config` may be null and is read within its size only.
  Creation(const ncclUniqueId& id, int rank_count, int rank, const ncclConfig_t* config);
  virtual ~Creation() = default;
  Creation(const Creation&) = delete;
  Creation& operator=(const Creation&) = delete;

  // Before the real init. Any local trouble makes the communicator native on all ranks, by telling them; an error
  // means that this rank must not go on, because the others may count on it.
  virtual ncclResult_t begin();

  // After the real init (the outermost group's end, inside groups) returned `result`; enters *comm into the table.
  // The result replaces NCCL's; if it turns success into an error, *comm is aborted and null.
  virtual ncclResult_t finish(ncclComm_t* comm, ncclResult_t result);

 protected:
  // How a rank gets in.
  struct Way {
    std::optional<switcher::Invitation> invitation;  // none: native
    std::optional<switcher::Hello::Choice> choice;   // of a split
    collectives::RankRange ranks = 0;                // how many the communicator may have
    int rank = 0;                                    // as in the hello
    int rank_count = 0;
  };
  enum class Refusal : bool { unwanted, wanted };  // wanted: no news to the user
  enum class Memory : bool { none, staging };

  Creation(std::string name, Way way, const ncclConfig_t* config);
  bool nonblocking() const { return nonblocking_; }
  bool refused() const { return !refusal_.empty(); }
  void refuse(std::string why, Refusal refusal);
  ncclResult_t say_hello(Memory memory);
  // When NCCL has said so.
  void settle(int rank, int rank_count);
  // Takes no part any more; nothing is asked of the others.
  void leave();
  // After the real init succeeded, which is undone.
  ncclResult_t fail(ncclComm_t* comm, ncclResult_t result);

 private:
  // Device and, if calls are compressed from the first one on, what they need, or a refusal.
  void prepare(Memory memory);
  bool reserve_window();
  bool reserve_staging(std::string* why);
  void reserve_transfers();
  switcher::Hello hello() const;
  ncclResult_t take_verdict(ncclComm_t comm);
  std::vector<std::uint64_t> link_sizes(const switcher::Verdict& verdict) const;
  ncclResult_t activate(ncclComm_t comm, const collectives::Agreement& agreement);
  ncclResult_t connect();  // with the other ranks' processes, or a refusal on all ranks alike
  void free_staging();

  Way way_;
  bool nonblocking_;
  bool copy_engines_ = false;  // this rank's staging can be registered
  codec::Device* device_ = nullptr;
  std::uint64_t staging_bytes_ = 0;  // that it has reserved or could reserve
  std::string refusal_;              // why this rank stays native
  bool wanted_ = false;              // the refusal is what the user asked for
  CommPointer state_ = std::make_shared<CommState>();
  std::unique_ptr<switcher::Session> session_;
};

// Before the first communicator or id: says what is wrong with the environment, once.
void announce_configuration();

// Writes the session's address into a fresh id whose last half was zero before NCCL made it, unless something forbids
// it.
void stamp(ncclUniqueId* id);

// Whether other processes need this one to create a communicator. Not in a forked child.
bool awaited_by_others();

// A row for a communicator that stays native, made by ncclCommInitAll.
void enter_native(ncclComm_t comm, std::string name, std::string reason);

}  // namespace zipccl::interpose

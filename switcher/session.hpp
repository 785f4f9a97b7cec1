// Agreement between the ranks of one communicator, apart from NCCL: stamp, hello, acknowledgement, verdict.
//
// 1. The process that calls ncclGetUniqueId stamps the id (Rendezvous::stamp): a listener address, a nonce and a
//    secret in the last 64 of its 128 bytes, which NCCL does not use.
// 2. Before the real ncclCommInitRank every rank says hello to that listener and waits for the acknowledgement.
// 3. After the real init has returned, every rank asks for the verdict. The real init returns only when all ranks
//    have entered it, so at the first question every rank that runs zipccl has said hello; a hello that is missing
//    then belongs to a rank without zipccl. No timer decides anything.
// 4. A verdict that says `compressed` makes the helper threads connect the processes with each other.
//
// Children of a communicator whose verdict was compressed (ncclCommSplit, ncclCommShrink) come about in the same way,
// with secrets derived from the parent's. All ranks of the parent say hello to a split before it is real, those without
// a color too, for the real split returns only when all have entered it; each color gets a verdict of its own. Its root
// is the parent's. To a shrink the ranks that remain say hello, and the first of them is the root, because the parent's
// may be gone.
//
// Nothing here calls NCCL or CUDA. All functions are thread-safe; none throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/status.hpp"
#include "switcher/channel.hpp"

namespace zipccl::switcher {

inline constexpr std::size_t unique_id_bytes = 128;
inline constexpr std::size_t stamp_offset = 64;  // NCCL 2.18 to 2.30 use at most 40 bytes

using UniqueId = std::array<std::uint8_t, unique_id_bytes>;
using UniqueIdBytes = std::span<std::uint8_t, unique_id_bytes>;
using ConstUniqueIdBytes = std::span<const std::uint8_t, unique_id_bytes>;

// How NCCL will connect two ranks, as far as zipccl can tell without asking it. Ordered from fast to slow; `network` is
// one with RDMA.
enum class LinkClass : std::uint8_t {
  same_device = 0,
  nvlink = 1,
  pcie = 2,
  shared_memory = 3,
  network = 4,
  sockets = 5
};
const char* to_string(LinkClass link);

// Which child of a communicator. The same on all ranks that take part, since NCCL demands the same order of them.
struct Descent {
  enum class Kind : std::uint8_t { none = 0, split = 1, shrink = 2 };  // none: made from an id
  Kind kind = Kind::none;
  std::uint64_t parent = 0;  // nonce
  std::uint64_t number = 0;  // splits of the parent before this one; shrinks of the same ranks
  std::uint64_t subset = 0;  // of a shrink: a hash of the ranks left out

  bool operator==(const Descent&) const = default;
};

// What entitles to say hello: where, and with which secret. Opaque to all but the switcher; as secret as an id.
struct Invitation {
  std::array<std::uint8_t, unique_id_bytes - stamp_offset> stamp{};
  Descent descent;
};
std::optional<Invitation> invitation_of(ConstUniqueIdBytes id);  // nothing if it is not stamped

// An agreed communicator, as one of its ranks knows it, when it has children. Opaque, constant.
class Parent;
using ParentPointer = std::shared_ptr<const Parent>;
// For all ranks of the parent; `number` counts its splits.
Invitation split_of(const Parent& parent, std::uint64_t number);
// For the ranks of the parent that are not excluded, at least one; `number` counts the shrinks that excluded the same.
Invitation shrink_of(const Parent& parent, std::span<const int> excluded, std::uint64_t number);

// What a rank says of itself. All ranks must agree on `configuration`; the rest may differ and is combined.
struct Hello {
  std::uint32_t rank = 0;  // of a split: rank and rank count of the parent
  std::uint32_t rank_count = 0;
  std::string library_version;            // "0.1.0"; must be the same on all ranks
  std::string configuration;              // canonical text of all settings that decide routes; must be the same
  std::string host;                       // host identity as NCCL sees it (NCCL_HOSTID or hostname plus boot id)
  std::string shared_memory;              // identity of /dev/shm, so that containers on one host are told apart
  std::string device;                     // PCI bus id or UUID; empty on the host runtime
  std::vector<std::string> nvlink_peers;  // device identities reachable over NVLink
  std::uint64_t process = 0;              // process id
  std::uint64_t staging_bytes = 0;        // staging this rank has reserved; 0: it could not
  std::uint32_t max_connections = 8;      // CUDA_DEVICE_MAX_CONNECTIONS as this process will see it
  bool p2p_disabled = false;              // NCCL_P2P_DISABLE=1
  bool shm_disabled = false;              // NCCL_SHM_DISABLE=1
  bool rdma = false;                      // what NCCL has for a network
  bool nonblocking = false;               // config.blocking == 0
  bool copy_engines = false;              // staging could be registered as a window
  std::string refusal;                    // why this rank must stay native; empty: it need not

  // Of a split, and only there.
  struct Choice {
    std::int32_t color = 0;  // negative: takes part in no child
    std::int32_t key = 0;
  };
  std::optional<Choice> choice;
};

// A rank's place in a communicator.
struct Place {
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 0;
};

// What all ranks learn, equal on every one of them.
struct Verdict {
  bool compressed = false;
  std::string reason;                 // if not compressed: names the rank and why, ready for one log line
  std::uint64_t staging_bytes = 0;    // smallest of all ranks
  std::uint32_t max_connections = 0;  // smallest of all ranks
  bool copy_engines = false;          // all ranks could, and NVLink connects them all
  LinkClass slowest_link = LinkClass::sockets;
  std::vector<LinkClass> links;  // rank_count x rank_count, row-major; empty unless compressed
};

// Combines the hellos of all ranks; a null pointer stands for a rank that said none. Pure, so that tests cover it.
Verdict decide(std::span<const Hello* const> hellos);
LinkClass link_between(const Hello& one, const Hello& other);

// One rank's part in one communicator's agreement. Created by Rendezvous::hello.
class Session {
 public:
  virtual ~Session() = default;
  // Call after the real init returned ncclSuccess. Blocks for a round trip at most: the first question of any rank
  // decides, and the answer goes to all. connection_lost if the root's process is gone, timed_out if it is stuck: the
  // caller then fails the init (section 5 of the design).
  virtual Status verdict(Verdict* verdict) = 0;
  // As in the hello. For a split: as the root has found it by color and key, after a compressed verdict.
  virtual Place place() = 0;
  // Call after a verdict that says `compressed`, before anything depends on it. The helper threads of all ranks connect
  // their processes as soon as that verdict is given, where no connection exists yet, and prove each; this waits for
  // the outcome, and so for no other rank's own thread. *agreed is the same on all ranks, false if any failed or left,
  // with *why naming rank and reason. connection_lost and timed_out as for the verdict; invalid_argument without such a
  // verdict or when called twice.
  virtual Status connect(std::unique_ptr<Channel>* channel, bool* agreed, std::string* why) = 0;
  // After connect() has agreed; null before.
  virtual ParentPointer parent() = 0;
  // Call instead when the real init failed: the others' verdict must not count on this rank.
  virtual void withdraw() = 0;
};

// The process's listener and connector. One per process, owned by interpose; starts its helper thread and socket with
// the first stamp and not before. A forked child must not use it (interpose makes a new one); destroying it there
// leaves the parent's thread and sockets alone. Channels and sessions must be destroyed before it.
class Rendezvous {
 public:
  // `interfaces` is NCCL_SOCKET_IFNAME's syntax (ZIPCCL_SOCKET_IFNAME overrides); empty: NCCL's own order, "ib", then
  // all but loopback and docker, then those.
  static std::unique_ptr<Rendezvous> create(std::string interfaces);
  virtual ~Rendezvous() = default;

  // Opens the listener if need be and writes the stamp. On failure leaves the id as it was and explains in *why.
  virtual Status stamp(UniqueIdBytes id, std::string* why) = 0;
  static bool stamped(ConstUniqueIdBytes id);

  // Says hello to the listener named in the invitation and waits for the acknowledgement. *why explains, with the
  // address:
  //   refused            unknown secret, rank or protocol, or too late: the communicator is native on all ranks
  //   connection_lost    the listener cannot be reached; the root saw no hello: native on all ranks
  //   invalid_argument   no stamp, a hello above 64 KiB, or no helper thread; nothing was sent: native on all ranks
  //   timed_out, others  the hello went out but its answer did not come. The root may count on this rank, so it must
  //                      not go on natively: the caller fails the init
  virtual Status hello(const Invitation& invitation, const Hello& hello, std::unique_ptr<Session>* session,
                       std::string* why) = 0;

  // Pollers run on the helper thread, which starts with the first one (and runs already where a channel exists). add()
  // fails if it cannot start or for want of memory, and then the poller is not known. remove() returns when the poller
  // is not running and never will again. wake() is cheap enough for every call: it enters the kernel only while the
  // thread sleeps. Records and lost peers wake by themselves.
  virtual Status add(Poller* poller) = 0;
  virtual void remove(Poller* poller) = 0;
  virtual void wake() = 0;

  // Whether other processes still need this one as the root of a communicator that they create, of which it need not be
  // a member: it should not end now. They do not take long, unless one of them is stuck.
  virtual bool awaited() = 0;

  // For a fork handler in the child: closes its copies of all sockets, so that the peers notice the parent's end.
  // Async-signal-safe. Nothing of the rendezvous, its sessions and channels may be used there afterwards, but they may
  // be destroyed.
  virtual void close_in_child() = 0;
};

}  // namespace zipccl::switcher

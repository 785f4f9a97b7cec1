#include "interpose/compressed_calls.hpp"

#include "interpose/all_gather_call.hpp"
#include "interpose/apart.hpp"
#include "interpose/callers.hpp"
#include "interpose/transfer_call.hpp"

namespace zipccl::interpose {

namespace {

class Calls final : public EligibleCalls {
 public:
  ncclResult_t begin(EligibleAllGather* call, bool* compressed) const override {
    return begin_all_gather(call, compressed);
  }
  ncclResult_t begin(EligibleTransfer* call, bool* compressed) const override {
    return begin_transfer(call, compressed);
  }
  ncclResult_t begin(EligibleAllToAll* call, bool* compressed) const override {
    return begin_all_to_all(call, compressed);
  }
  void dropped(std::span<const CommPointer* const> owners) const override {
    for (const CommPointer* owner : owners) {
      note_dropped_calls(**owner);
    }
  }
  void ran_ahead(std::span<const EligibleAllGather> calls) const override {
    for (const EligibleAllGather& call : calls) {
      note_ran_ahead(*call.owner);
    }
  }
  ncclResult_t run(std::span<const EligibleAllGather> calls) const override { return run_all_gathers(calls); }
  std::unique_ptr<Batch> batch(std::span<const EligibleTransfer> calls) const override {
    return make_transfer_batch(calls);
  }
  std::unique_ptr<Apart> apart(std::span<EligibleAllGather> all_gathers, std::span<EligibleTransfer> transfers,
                               std::span<const NativeStream> native) const override {
    return make_apart(all_gathers, transfers, native);
  }
  std::vector<RecordedCall> parts(const EligibleAllToAll& call) const override { return parts_of_all_to_all(call); }
};

}  // namespace

const EligibleCalls& eligible_calls() {
  static const Calls own;
  return own;
}

}  // namespace zipccl::interpose

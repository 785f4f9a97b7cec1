// One rank's way into a child of another communicator (ncclCommSplit, ncclCommShrink): as into one that is made from an
// id, but through the parent's invitation. Children of a native parent are native.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "interpose/creation.hpp"

namespace zipccl::interpose {

class ChildCreation final : public Creation {
 public:
  // Both count the child. `parent` may be null: a communicator that zipccl does not know.
  static std::shared_ptr<ChildCreation> of_split(const CommPointer& parent, int color, int key,
                                                 const ncclConfig_t* config);
  static std::shared_ptr<ChildCreation> of_shrink(const CommPointer& parent, const std::vector<int>& excluded,
                                                  const ncclConfig_t* config);

  ncclResult_t begin() override;
  // *comm is null for a rank that takes part in no child.
  ncclResult_t finish(ncclComm_t* comm, ncclResult_t result) override;

 private:
  ChildCreation(const CommPointer& parent, const std::string& suffix, const Way& way, const ncclConfig_t* config);

  codec::Device* parents_device_;  // null if the parent is native
  Memory memory_;
};

}  // namespace zipccl::interpose

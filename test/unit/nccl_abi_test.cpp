// zipccl's own declaration of NCCL against NVIDIA's header, where the build has it.
#include "test/unit/nccl_abi.hpp"

#include "collectives/nccl_api.hpp"
#include "test/unit/catch.hpp"

TEST_CASE("our declaration of NCCL's ABI is NVIDIA's") {
  const zipccl::test::NcclAbi ours = ZIPCCL_NCCL_ABI;
  const zipccl::test::NcclAbi theirs = zipccl::test::nvidia_nccl_abi();
  for (std::size_t index = 0; index < ours.size(); ++index) {
    CAPTURE(index);
    REQUIRE(ours[index] == theirs[index]);
  }
}

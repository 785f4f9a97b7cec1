// What NCCL will use between hosts.
#include <cstdlib>
#include <filesystem>

#include "interpose/rdma.hpp"
#include "test/unit/catch.hpp"

using zipccl::interpose::has_rdma;

TEST_CASE("RDMA is where there are devices, unless the user has told NCCL otherwise") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("zipccl-rdma-" + std::to_string(std::rand()));
  const std::string devices = folder / "infiniband";
  unsetenv("NCCL_NET");
  unsetenv("NCCL_IB_DISABLE");
  CHECK_FALSE(has_rdma(devices));  // no such folder
  std::filesystem::create_directories(devices);
  CHECK_FALSE(has_rdma(devices));
  std::filesystem::create_directory(devices + "/mlx5_0");
  CHECK(has_rdma(devices));
  setenv("NCCL_IB_DISABLE", "0", 1);
  CHECK(has_rdma(devices));
  setenv("NCCL_IB_DISABLE", "1", 1);
  CHECK_FALSE(has_rdma(devices));
  setenv("NCCL_NET", "AWS Libfabric", 1);
  CHECK(has_rdma(devices));
  setenv("NCCL_NET", "socket", 1);
  CHECK_FALSE(has_rdma(devices));
  setenv("NCCL_NET", "", 1);
  unsetenv("NCCL_IB_DISABLE");
  CHECK(has_rdma(devices));
  std::filesystem::remove_all(folder);
}

// What is read from the kernel's lists about memory and swap.
#include "sys/reclaim.h"

#include <gtest/gtest.h>

#include "sys/swap.h"

namespace dsec::sys {
namespace {

TEST(SwappableRangesTest, AreTheMappingsThatNoFileOnDiskHolds) {
  const std::string_view maps =
      "55d0c0000000-55d0c0002000 r--p 00000000 00:2a 1234                       /usr/bin/python3.11\n"
      "55d0c0002000-55d0c0004000 rw-p 00002000 00:2a 1234                       /usr/bin/python3.11\n"
      "55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0                          [heap]\n"
      "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n"
      "7f0000200000-7f0000300000 ---p 00000000 00:00 0 \n"
      "7f0000300000-7f0000400000 rw-s 00000000 00:01 77                         /memfd:shared (deleted)\n"
      "7f0000400000-7f0000500000 rw-s 00000000 08:01 99                         /data/file with spaces\n"
      "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]\n"
      "7ffd00100000-7ffd00104000 r--p 00000000 00:00 0                          [vvar]\n"
      "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";

  std::vector<std::uint64_t> starts;
  for (const MemoryRange& range : swappable_ranges(maps)) starts.push_back(range.start);

  EXPECT_EQ(starts, (std::vector<std::uint64_t>{0x55d0c0002000, 0x55d0c1000000, 0x7f0000000000, 0x7f0000300000, 0x7ffd00000000}));
  EXPECT_EQ(swappable_ranges(maps)[1].size, 0x21000u);
}

TEST(SwappableRangesTest, LinesOfAnotherFormAreNone) {
  EXPECT_TRUE(swappable_ranges("").empty());
  EXPECT_TRUE(swappable_ranges("nonsense\n-\n- -\n1-2\n1-2 rw-p\n").empty());
}

TEST(SwapAreasTest, AreReadFromTheKernelsTable) {
  const auto areas = swap_areas(
      "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
      "/dev/zram1                              partition\t1048572\t\t512\t\t100\n"
      "/var/my\\040data/swap/swap                file\t\t2097148\t\t0\t\t10\n");

  ASSERT_EQ(areas.size(), 2u);
  EXPECT_EQ(areas[0].path, "/dev/zram1");
  EXPECT_EQ(areas[0].bytes, 1048572u << 10);
  EXPECT_EQ(areas[0].used_bytes, 512u << 10);
  EXPECT_EQ(areas[1].path, "/var/my data/swap/swap");
}

TEST(SwapAreasTest, AnEmptyTableHasNone) { EXPECT_TRUE(swap_areas("Filename Type Size Used Priority\n").empty()); }

}  // namespace
}  // namespace dsec::sys

#include "image/residue.h"

#include <gtest/gtest.h>

#include <random>

namespace dsec::image {
namespace {

std::vector<ResidueFinding> scanned(ResidueScan& scan, const std::string& path, const std::vector<std::string>& pieces) {
  scan.begin(path);
  for (const std::string& piece : pieces) scan.bytes(piece);
  return scan.findings();
}

TEST(ResidueRulesTest, ReadsNamesAndTextsToTheEndOfTheLine) {
  const auto rules = parse_residue_rules("# who may not leave\n\na-token  with spaces in it\nb.2\t12345678\r\n");

  ASSERT_TRUE(rules.ok()) << rules.error().message();
  EXPECT_EQ(*rules, (std::vector<ResidueRule>{{"a-token", "with spaces in it"}, {"b.2", "12345678"}}));
}

TEST(ResidueRulesTest, RefusesLinesThatAreNoRuleAndNamesThem) {
  for (const char* text : {"ok 12345678\nalone\n", "ok 12345678\nshort 1234567\n", "ok 12345678\nno/name 12345678\n"}) {
    const auto rules = parse_residue_rules(text);

    ASSERT_FALSE(rules.ok()) << text;
    EXPECT_EQ(rules.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(rules.error().message().find("line 2"), std::string::npos) << rules.error().message();
  }
}

TEST(ResidueScanTest, FindsATextHoweverTheContentIsCut) {
  const std::string content = std::string(100, '.') + "long-secret-text" + std::string(50, '.') + "shorter!" + std::string(10, '.');
  for (std::size_t cut = 1; cut < content.size(); cut++) {
    ResidueScan scan({{"long", "long-secret-text"}, {"short", "shorter!"}}, {});
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < content.size(); at += cut) pieces.push_back(content.substr(at, cut));

    EXPECT_EQ(scanned(scan, "f", pieces), (std::vector<ResidueFinding>{{"f", "long"}})) << cut;
  }
}

TEST(ResidueScanTest, AgreesWithAPlainSearchOnRandomText) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; round++) {
    const auto letters = [&](std::size_t size) {
      std::string out;
      for (std::size_t i = 0; i < size; i++) out.push_back("ab"[random() % 2]);
      return out;
    };
    std::vector<ResidueRule> rules;
    for (int i = 0; i < 3; i++) rules.push_back({"r" + std::to_string(i), letters(8 + random() % 6)});
    const std::string content = letters(random() % 600);
    ResidueScan scan(rules, {});

    const bool found = !scanned(scan, "f", {content.substr(0, content.size() / 3), content.substr(content.size() / 3)}).empty();

    const bool there = std::any_of(rules.begin(), rules.end(), [&](const ResidueRule& rule) { return content.find(rule.text) != std::string::npos; });
    EXPECT_EQ(found, there) << content;
  }
}

TEST(ResidueScanTest, JoinsNothingAcrossAHoleOrAnotherFile) {
  ResidueScan scan({{"r", "12345678"}}, {});

  scan.begin("a");
  scan.bytes("1234");
  scan.hole();
  scan.bytes("5678");
  scan.bytes("1234");
  scan.begin("b");
  scan.bytes("5678");

  EXPECT_TRUE(scan.findings().empty());
}

TEST(ResidueScanTest, ToleratesWhatIsAllowedAndTellsEachPathOnce) {
  ResidueScan scan({{"r", "12345678"}}, {"kept", "/d/*.log"});

  scan.text("x/kept", "12345678");
  scan.text("d/a.log", "12345678");
  scan.text("d/e/a.log", "12345678 12345678");
  scan.text("d/a.txt", "....12345678....12345678");

  EXPECT_EQ(scan.findings(), (std::vector<ResidueFinding>{{"d/e/a.log", "r"}, {"d/a.txt", "r"}}));
}

TEST(ResidueScanTest, DoesNotTellATextThatStandsInAPath) {
  ResidueScan scan({{"r", "12345678"}}, {});

  scan.text("d/12345678.txt", "12345678.txt");

  EXPECT_EQ(scan.findings(), (std::vector<ResidueFinding>{{"d/[r].txt", "r"}}));
}

TEST(ResidueScanTest, WithoutRulesFindsNothing) {
  ResidueScan scan({}, {});

  EXPECT_TRUE(scanned(scan, "f", {"12345678", std::string(1 << 16, 'x')}).empty());
}

}  // namespace
}  // namespace dsec::image

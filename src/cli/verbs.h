// The verbs of `dsec`, each a function from its options to an exit code. What
// the options mean stands with the flags in command_line.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/context.h"
#include "cli/table.h"

namespace dsec::cli {

struct SpecOptions {
  std::string image, base, snapshot, workspace, name, user, hostname, backend, priority, network, memory, disk, idle, max_lifetime, on_timeout;
  std::vector<std::string> toolkits, diffs, env, labels, services, allow;
  double cpus = 0;
  std::int64_t max_processes = 0;
  bool no_new_privs = false;
};
Result<json::object> sandbox_spec(const SpecOptions& options);
// Creates and waits ("90s"; "" = two minutes) until it runs.
Result<json::object> create_sandbox(Context& context, json::object spec, const std::string& wait);

struct CommandOptions {
  std::vector<std::string> command;
  std::vector<std::string> env;
  std::string user, workdir, timeout, session;
  bool interactive = false;
  bool tty = false;
  bool detach = false;
  bool shell = false;  // the command is one shell line
};

struct RunOptions {
  SpecOptions spec;
  CommandOptions command;
  bool remove = false;
  std::string wait;  // for the start
};

// verbs_run.cc
int run_verb(Context& context, const RunOptions& options);
int exec_verb(Context& context, const std::string& ref, const CommandOptions& options);
int shell_verb(Context& context, const std::string& ref, CommandOptions options);
int attach_verb(Context& context, const std::string& ref, const std::string& exec_id, bool interactive);
int logs_verb(Context& context, const std::string& ref, const std::string& exec_id, bool follow);

// verbs_sandbox.cc
int create_verb(Context& context, const SpecOptions& spec, const std::string& wait, bool json_output);
struct ListOptions {
  ListingOptions listing;
  std::string selector, state;
  bool all = false;
};
int ps_verb(Context& context, const ListOptions& options);
int inspect_verb(Context& context, const std::vector<std::string>& refs, const std::string& format);
int stats_verb(Context& context, const std::vector<std::string>& refs, const ListingOptions& listing);
int execs_verb(Context& context, const std::string& ref, const ListingOptions& listing);
int kill_verb(Context& context, const std::string& ref, const std::string& exec_id, const std::string& signal);
int wait_verb(Context& context, const std::vector<std::string>& refs, const std::string& exec_id);
int stop_verb(Context& context, const std::vector<std::string>& refs, const std::string& selector);
// As stop, and nothing of them is kept.
int rm_verb(Context& context, const std::vector<std::string>& refs, const std::string& selector);
Result<void> forget_sandbox(Context& context, const std::string& ref);
struct PauseVerbOptions {
  std::string selector, wake, reason;
  std::uint64_t fence = 0;  // 0 = none
  bool all = false;
};
// `action`: "pause" or "resume".
int pause_verb(Context& context, const std::vector<std::string>& refs, const std::string& action, const PauseVerbOptions& options);
int events_verb(Context& context, const std::string& ref, bool follow, bool json_output);

// verbs_checkpoint.cc
int checkpoint_verb(Context& context, const std::string& ref, const std::string& expires, bool json_output);
int snapshot_verb(Context& context, const std::string& ref, const std::string& name, const std::string& expires, bool json_output);
int rollback_verb(Context& context, const std::string& ref, const std::string& checkpoint);
int fork_verb(Context& context, const std::string& ref, std::int64_t count, const std::vector<std::string>& names, bool json_output);
int checkpoints_verb(Context& context, const std::string& ref, const ListingOptions& listing);
int checkpoints_rm_verb(Context& context, const std::vector<std::string>& refs);

// verbs_files.cc
int cp_verb(Context& context, const std::string& from, const std::string& to, const std::string& user, const std::string& owner);
int fs_ls_verb(Context& context, const std::string& ref, const std::string& path, bool recursive, const std::string& user, const ListingOptions& listing);
int fs_cat_verb(Context& context, const std::string& ref, const std::string& path, const std::string& user);
int fs_rm_verb(Context& context, const std::string& ref, const std::string& path, bool recursive, const std::string& user);
int fs_mkdir_verb(Context& context, const std::string& ref, const std::string& path, bool parents, const std::string& user);

// verbs_images.cc
struct ImportVerbOptions {
  std::string collection;  // "images" or "layers"
  std::string name, source, kind, at, owner, profile, architecture, authfile;
  bool quiet = false;
  bool json = false;
};
int import_verb(Context& context, const ImportVerbOptions& options);
int catalogue_ls_verb(Context& context, const std::string& collection, const ListingOptions& listing);
int catalogue_inspect_verb(Context& context, const std::string& collection, const std::string& ref);
int catalogue_rm_verb(Context& context, const std::string& collection, const std::vector<std::string>& refs);

// verbs_layer.cc
int layer_files_verb(Context& context, const std::string& ref, const std::string& path, bool recursive, const ListingOptions& options);
int layer_cat_verb(Context& context, const std::string& ref, const std::string& path);
// As diff(1): 0 when they are equal, 1 when not, 2 for trouble.
int layer_diff_verb(Context& context, const std::string& before, const std::string& after, bool json_output);
struct LayerVerifyOptions {
  std::string key, signature;  // files
  bool all = false;
  bool json = false;
};
int layer_verify_verb(Context& context, std::vector<std::string> refs, const LayerVerifyOptions& options);
int layer_sign_verb(Context& context, const std::string& ref, const std::string& key);
// Into the node's shared store, or the one that the server calls `to`; from it.
int layer_sync_verb(Context& context, std::vector<std::string> refs, bool all, const std::string& to);
int layer_fetch_verb(Context& context, const std::string& digest, const std::string& name);

struct LayerOptimizeOptions {
  std::string trace, name, kind;  // a file; the new name; "" = the store's, the same
  bool json = false;
};
int layer_optimize_verb(Context& context, const std::string& ref, const LayerOptimizeOptions& options);

// verbs_garbage.cc
struct CollectOptions {
  bool dry_run = false;
  bool store = false;  // the shared one
  std::string condemn_after, delete_after;  // durations; "": as the server has them
};
int layer_gc_verb(Context& context, const CollectOptions& options, const ListingOptions& listing_options);
int layer_pin_verb(Context& context, const std::string& ref, const std::string& reason, const std::string& duration);
int layer_unpin_verb(Context& context, const std::string& ref);
int layer_pins_verb(Context& context, const ListingOptions& options);
// verbs_build.cc
struct BuildVerbOptions {
  std::string context;
  std::string file;  // "" = Dockerfile of the context, "-" = standard input
  std::string name;
  std::vector<std::string> args;
  std::vector<std::string> secrets;
  std::vector<std::string> services;
  std::string target;
  std::string profile;
  bool no_cache = false;
  std::int64_t memory_mb = 0;
  std::int64_t disk_mb = 0;
  std::int64_t timeout_seconds = 0;
  bool quiet = false;
  bool json = false;
};
int build_verb(Context& context, const BuildVerbOptions& options);

// verbs_pack.cc
struct PackVerbOptions {
  std::string name, kind;
  std::vector<std::string> remove, allow;
  bool quiet = false;
  bool json = false;
};
int pack_verb(Context& context, const std::string& sandbox, const PackVerbOptions& options);
// Out of quarantine; under another name where `name` is given.
int layer_promote_verb(Context& context, const std::string& ref, const std::string& kind, const std::string& name);

// verbs_store.cc
// Exit code 1 when layers cannot be kept there.
int store_probe_verb(const std::string& url, const std::string& second, const ListingOptions& options);

// verbs_admin.cc
int login_verb(const std::string& name, const std::string& url, const std::string& key);
int context_ls_verb(const ListingOptions& listing);
int context_use_verb(const std::string& name);
int context_rm_verb(const std::string& name);
int node_ls_verb(Context& context, const ListingOptions& listing);
int service_ls_verb(Context& context, const ListingOptions& listing);
struct ServiceAddOptions {
  std::string name, via;
  std::vector<std::string> hosts, env, addresses;
};
int service_add_verb(Context& context, const ServiceAddOptions& options);
int service_rm_verb(Context& context, const std::vector<std::string>& names);
int service_detect_verb(Context& context, bool dry_run, const ListingOptions& listing);
int project_verb(Context& context, const std::string& action, const std::string& name, const ListingOptions& listing);
int key_verb(Context& context, const std::string& action, const std::string& project, const std::string& name, const std::string& role, const ListingOptions& listing);
int whoami_verb(Context& context);
int version_verb(Context& context, bool json_output);

// verbs_port.cc
int port_forward_verb(Context& context, const std::string& ref, const std::vector<std::string>& ports, const std::string& address);

// doctor.cc
int doctor_verb(Context& context, bool json_output);


}  // namespace dsec::cli

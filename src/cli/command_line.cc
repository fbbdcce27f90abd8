// The command line of `dsec`: every verb, its options and its help. The only
// file that knows CLI11.
#include <CLI/CLI.hpp>
#include <csignal>
#include <functional>
#include <optional>

#include "cli/import_source.h"
#include "cli/completion.h"
#include "cli/main.h"
#include "cli/verbs.h"

namespace dsec::cli {
namespace {

using Action = std::function<int(Context&)>;

class CommandLine {
 public:
  CommandLine() {
    app_.name("dsec");
    app_.require_subcommand(1);
    app_.fallthrough(false);
    app_.failure_message([](const CLI::App*, const CLI::Error& error) {
      return std::string("dsec: ") + error.what() + "\n`dsec --help` and `dsec VERB --help` say what there is.\n";
    });
    app_.add_option("--url", global_.url, "Address of the server (DSEC_URL)");
    app_.add_option("--context", global_.context, "Context of the configuration (DSEC_CONTEXT)");
    app_.set_version_flag("--version", "dsec 0.1.0");
    add_server_programs();
    add_store();
    add_sandboxes();
    add_checkpoints();
    add_commands();
    add_files();
    add_images();
    add_administration();
  }

  int run(int argc, char** argv) {
    if (argc > 1 && argv[1][0] != '-' && app_.get_subcommands([argv](const CLI::App* sub) { return sub->check_name(argv[1]); }).empty()) {
      note(std::string("dsec: there is no verb \"") + argv[1] + "\"; `dsec --help` lists them");
      return kUsage;
    }
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      const int code = app_.exit(error);
      return code == 0 ? kOk : kUsage;
    }
    Context context(global_);
    return action_ ? action_(context) : kUsage;
  }

  const CLI::App& app() const { return app_; }

 private:
  CLI::App* verb(const std::string& name, const std::string& description, Action action, CLI::App* parent = nullptr) {
    CLI::App* sub = (parent ? parent : &app_)->add_subcommand(name, description);
    sub->callback([this, action = std::move(action)] { action_ = action; });
    return sub;
  }
  CLI::App* family(const std::string& name, const std::string& description) {
    CLI::App* sub = app_.add_subcommand(name, description);
    sub->require_subcommand(1);
    return sub;
  }
  static void add_listing(CLI::App* sub, ListingOptions& options) {
    sub->add_flag("--json", options.json, "Whole objects, as JSON");
    sub->add_flag("-q,--quiet", options.quiet, "Names only");
    sub->add_flag("-l,--long", options.wide, "All columns");
    sub->add_option("--format", options.format, "A line for each item, as '{id} {labels.job}'");
  }
  void add_spec(CLI::App* sub, SpecOptions& o) {
    sub->add_option("--image", o.image, "Image to start from, as `dsec image ls` lists them");
    sub->add_option("--base", o.base, "Base layer, in place of --image");
    sub->add_option("--snapshot", o.snapshot, "Snapshot's name or checkpoint's id, in place of --image and layers");
    sub->add_option("--workspace", o.workspace, "Workspace layer");
    sub->add_option("--toolkit", o.toolkits, "Toolkit layer; can be given again")->expected(1)->take_all()->allow_extra_args(false);
    sub->add_option("--diff", o.diffs, "Layer packed from a sandbox, above the others; can be given again")->expected(1)->take_all()->allow_extra_args(false);
    sub->add_option("--name", o.name, "Name, unique among the project's live sandboxes");
    sub->add_option("--label", o.labels, "NAME=VALUE; can be given again")->allow_extra_args(false);
    sub->add_option("--memory", o.memory, "Memory limit (512m, 4g)");
    sub->add_option("--cpus", o.cpus, "CPU limit in cores (0.5)");
    sub->add_option("--disk", o.disk, "Limit of what is written (4g)");
    sub->add_option("--max-processes", o.max_processes, "Limit of processes and threads");
    sub->add_option("--idle", o.idle, "Ends after this time without a request (15m)");
    sub->add_option("--max-lifetime", o.max_lifetime, "Ends after this time, whatever it does (2h)");
    sub->add_option("--on-timeout", o.on_timeout, "What the end of these times does: stop or pause");
    sub->add_option("--network", o.network, "none or proxy")->check(CLI::IsMember({"none", "proxy", "device"}));
    sub->add_option("--service", o.services, "Service that may be reached, as `dsec service ls` lists them; implies --network proxy")->allow_extra_args(false);
    sub->add_option("--allow", o.allow, "HOST[:PORT] or CIDR that may be reached; implies --network proxy")->allow_extra_args(false);
    sub->add_option("--hostname", o.hostname, "Host name inside");
    sub->add_option("--backend", o.backend, "container, microvm or fullvm");
    sub->add_option("--priority", o.priority, "latency or batch")->check(CLI::IsMember({"latency", "batch"}));
    sub->add_flag("--no-new-privs", o.no_new_privs, "Setuid programs gain nothing");
  }
  void add_command(CLI::App* sub, CommandOptions& o) {
    sub->add_flag("-i,--interactive", o.interactive, "Standard input goes to the command");
    sub->add_flag("-t,--tty", o.tty, "In a terminal");
    sub->add_flag("-d,--detach", o.detach, "Start it and print its id");
    sub->add_option("-e,--env", o.env, "NAME=VALUE, or NAME to take the value from here; can be given again")->allow_extra_args(false);
    sub->add_option("-u,--user", o.user, "User inside (name, uid, uid:gid)");
    sub->add_option("-w,--workdir", o.workdir, "Working directory inside");
    sub->add_option("--timeout", o.timeout, "Kills the command after this time (90s); exit code 124");
    sub->add_flag("--shell", o.shell, "The command is a shell line");
    sub->add_option("command", o.command, "Command, behind --")->expected(-1);
  }

  void add_server_programs();
  void add_store();
  void add_sandboxes();
  void add_checkpoints();
  void add_commands();
  void add_files();
  void add_images();
  void add_layer_contents(CLI::App* parent);
  void add_layer_garbage(CLI::App* parent);
  void add_administration();

  CLI::App app_{"DSec: sandboxes for agents. Run a server with `dsec serve`; everything else speaks to one."};
  GlobalOptions global_;
  Action action_;

  // What the flags write to. One line of a verb is one process: they are shared where they mean the same.
  RunOptions run_;
  CommandOptions exec_;
  SpecOptions create_;
  ListOptions ps_;
  ListingOptions listing_;
  LayerVerifyOptions layer_verify_;
  LayerOptimizeOptions layer_optimize_;
  CollectOptions collect_;
  ImportVerbOptions import_;
  PackVerbOptions pack_;
  BuildVerbOptions build_;
  ServiceAddOptions service_;
  std::vector<std::string> refs_;
  std::int64_t count_ = 0;
  PauseVerbOptions pause_;
  std::string ref_, exec_id_, text_, second_, user_, owner_, signal_ = "TERM", wait_, selector_;
  bool json_ = false, follow_ = false, recursive_ = false, parents_ = false, interactive_ = false, dry_run_ = false;
};

void CommandLine::add_server_programs() {
  // Run by the program itself before this command line is looked at; here for --help and completion.
  verb("serve", "Run everything in one process tree on this machine", [](Context&) { return static_cast<int>(kUsage); });
  CLI::App* doctor = verb("doctor", "What this host can do, what is missing, how to mend it", [this](Context& c) { return doctor_verb(c, json_); });
  doctor->add_flag("--json", json_, "As JSON");
}

void CommandLine::add_store() {
  CLI::App* parent = family("store", "The shared store of all nodes");
  CLI::App* probe = verb("probe", "Try a store for what layers need: holds, noted (we do without) or refused", [this](Context&) {
    return store_probe_verb(ref_, second_, listing_);
  }, parent);
  probe->add_option("store", ref_, "A directory, or s3://BUCKET?endpoint=URL&credentials=FILE&ca=FILE")->required();
  probe->add_option("--second", second_, "Another mount of the same directory: tells when a new name is seen there");
  add_listing(probe, listing_);
}

void CommandLine::add_sandboxes() {
  CLI::App* create = verb("create", "Make a sandbox and print its id", [this](Context& c) { return create_verb(c, create_, wait_, json_); });
  add_spec(create, create_);
  create->add_option("-e,--env", create_.env, "NAME=VALUE for every command; can be given again")->allow_extra_args(false);
  create->add_option("-u,--user", create_.user, "Default user of commands");
  create->add_option("--wait", wait_, "How long to wait until it runs (default 2m, 0 not at all)");
  create->add_flag("--json", json_, "The whole object");

  CLI::App* ps = verb("ps", "List sandboxes", [this](Context& c) { return ps_verb(c, ps_); });
  ps->alias("ls");
  add_listing(ps, ps_.listing);
  ps->add_flag("-a,--all", ps_.all, "Ended ones too");
  ps->add_option("-s,--selector", ps_.selector, "Labels, as job=j1,stage!=eval");
  ps->add_option("--state", ps_.state, "Only those in this state");

  CLI::App* inspect = verb("inspect", "Everything about sandboxes, as JSON", [this](Context& c) { return inspect_verb(c, refs_, text_); });
  inspect->add_option("sandbox", refs_, "Id, unique id prefix or name")->required();
  inspect->add_option("--format", text_, "As '{id} {state}'");

  CLI::App* build = verb("build", "Build an image from a Dockerfile; its commands run in sandboxes", [this](Context& c) { return build_verb(c, build_); });
  build->add_option("context", build_.context, "Directory whose files the Dockerfile copies")->required()->check(CLI::ExistingDirectory);
  build->add_option("-t,--tag", build_.name, "NAME:TAG of the image")->required();
  build->add_option("-f,--file", build_.file, "The Dockerfile (CONTEXT/Dockerfile); - is standard input");
  build->add_option("--build-arg", build_.args, "NAME=VALUE of an ARG; can be given again")->allow_extra_args(false);
  build->add_option("--target", build_.target, "Stage to build instead of the last one");
  build->add_option("--secret", build_.secrets, "id=NAME,src=FILE for RUN --mount=type=secret; can be given again")->allow_extra_args(false);
  build->add_option("--network-service", build_.services, "Service that RUN may reach (dsec service ls); can be given again")->allow_extra_args(false);
  build->add_flag("--no-cache", build_.no_cache, "Run every step again");
  build->add_option("--profile", build_.profile, "plain or lz4 (lz4)")->check(CLI::IsMember({"plain", "lz4"}));
  build->add_option("--memory-mb", build_.memory_mb, "Memory of a step's sandbox");
  build->add_option("--disk-mb", build_.disk_mb, "Disk of a step's sandbox");
  build->add_option("--timeout", build_.timeout_seconds, "Seconds that one step may take (3600)");
  build->add_flag("-q,--quiet", build_.quiet, "Print the digest only");
  build->add_flag("--json", build_.json, "The whole operation, with every step");
  CLI::App* pack = verb("pack", "Make a layer of what a sandbox has written; it stands still while that is read", [this](Context& c) { return pack_verb(c, ref_, pack_); });
  pack->add_option("sandbox", ref_)->required();
  pack->add_option("name", pack_.name, "NAME:TAG of the layer, in quarantine until it is promoted")->required();
  pack->add_option("--kind", pack_.kind, "diff, workspace or toolkit (diff)")->check(CLI::IsMember({"diff", "workspace", "toolkit"}));
  pack->add_option("--remove", pack_.remove, "Pattern of paths to leave out; can be given again")->allow_extra_args(false);
  pack->add_option("--allow", pack_.allow, "Pattern of paths where residue may stay; can be given again")->allow_extra_args(false);
  pack->add_flag("-q,--quiet", pack_.quiet, "Print the digest only");
  pack->add_flag("--json", pack_.json, "The whole record");

  CLI::App* stats = verb("stats", "CPU, memory and processes of sandboxes", [this](Context& c) { return stats_verb(c, refs_, listing_); });
  stats->add_option("sandbox", refs_, "Default: all that run");
  add_listing(stats, listing_);

  CLI::App* kill = verb("kill", "Send a signal to a command, or to all that run", [this](Context& c) { return kill_verb(c, ref_, exec_id_, signal_); });
  kill->add_option("sandbox", ref_)->required();
  kill->add_option("exec", exec_id_, "Command, as `dsec execs` lists them");
  kill->add_option("-s,--signal", signal_, "Name or number (default TERM)");

  CLI::App* wait = verb("wait", "Wait for the end of sandboxes and print the cause, or of a command and print its exit code",
                        [this](Context& c) { return wait_verb(c, refs_, exec_id_); });
  wait->add_option("sandbox", refs_)->required();
  wait->add_option("--exec", exec_id_, "A command of the sandbox");

  CLI::App* stop = verb("stop", "End sandboxes; what is recorded of them stays", [this](Context& c) { return stop_verb(c, refs_, selector_); });
  CLI::App* rm = verb("rm", "End sandboxes and forget them: their record, name and output are gone", [this](Context& c) { return rm_verb(c, refs_, selector_); });
  for (CLI::App* sub : {stop, rm}) {
    sub->add_option("sandbox", refs_);
    sub->add_option("-s,--selector", selector_, "All with these labels");
  }
  for (const char* action : {"pause", "resume"}) {
    CLI::App* sub = verb(action, std::string(action) == "pause" ? "Freeze sandboxes" : "Thaw sandboxes",
                         [this, action](Context& c) { return pause_verb(c, refs_, action, pause_); });
    sub->add_option("sandbox", refs_);
    sub->add_option("-s,--selector", pause_.selector, "All with these labels, and those that come later");
    sub->add_flag("--all", pause_.all, "All of the project");
    sub->add_option("--fence", pause_.fence, "The number of your lease");
    if (std::string(action) == "resume") continue;
    sub->add_option("--wake", pause_.wake, "any, or holder: only who has this fence or a higher one resumes it");
    sub->add_option("--reason", pause_.reason, "For who looks at it");
  }
  CLI::App* events = verb("events", "What has happened to a sandbox; without one, what happens from now on", [this](Context& c) { return events_verb(c, ref_, follow_, json_); });
  events->add_option("sandbox", ref_, "Only of this one");
  events->add_flag("-f,--follow", follow_, "Go on as it happens");
  events->add_flag("--json", json_, "A JSON object a line");
}

void CommandLine::add_checkpoints() {
  CLI::App* checkpoint = verb("checkpoint", "Keep what a sandbox's files are now, to go back to; it runs on", [this](Context& c) { return checkpoint_verb(c, ref_, text_, json_); });
  CLI::App* snapshot = verb("snapshot", "Keep what a sandbox's files are now, under a name that others can be made of", [this](Context& c) {
    return snapshot_verb(c, ref_, second_, text_, json_);
  });
  snapshot->add_option("sandbox", ref_)->required();
  snapshot->add_option("name", second_, "What it is called")->required();
  checkpoint->add_option("sandbox", ref_)->required();
  checkpoint->add_option("--expires", text_, "Removed after this time, as 2h (24h); 0s: never");
  snapshot->add_option("--expires", text_, "Removed after this time, as 7d (never)");
  CLI::App* rollback = verb("rollback", "Take a sandbox's files back to a checkpoint; its processes end", [this](Context& c) { return rollback_verb(c, ref_, second_); });
  rollback->add_option("sandbox", ref_)->required();
  rollback->add_option("checkpoint", second_, "Id, as `dsec checkpoints ls` lists them, or a snapshot's name")->required();
  CLI::App* fork = verb("fork", "Make sandboxes that begin with the files of this one", [this](Context& c) { return fork_verb(c, ref_, count_, refs_, json_); });
  fork->add_option("sandbox", ref_)->required();
  fork->add_option("-n,--count", count_, "How many (1)");
  fork->add_option("--name", refs_, "Of a child; given as often as there are children")->allow_extra_args(false);
  for (CLI::App* sub : {checkpoint, snapshot, fork}) sub->add_flag("--json", json_, "The whole answer");
  CLI::App* all = family("checkpoints", "Checkpoints and snapshots of the project");
  CLI::App* ls = verb("ls", "List them, oldest first", [this](Context& c) { return checkpoints_verb(c, ref_, listing_); }, all);
  ls->add_option("sandbox", ref_, "Of this one only");
  add_listing(ls, listing_);
  CLI::App* rm = verb("rm", "Remove them; what was made of them runs on", [this](Context& c) { return checkpoints_rm_verb(c, refs_); }, all);
  rm->add_option("checkpoint", refs_, "Ids or snapshots' names")->required();
}

void CommandLine::add_commands() {
  CLI::App* run = verb("run", "Make a sandbox and run a command in it", [this](Context& c) { return run_verb(c, run_); });
  add_spec(run, run_.spec);
  add_command(run, run_.command);
  run->add_flag("--rm", run_.remove, "End the sandbox afterwards");
  run->add_option("--wait", run_.wait, "How long to wait until it runs (default 2m)");

  CLI::App* exec = verb("exec", "Run a command in a sandbox", [this](Context& c) { return exec_verb(c, ref_, exec_); });
  exec->add_option("sandbox", ref_)->required();
  add_command(exec, exec_);
  exec->add_option("--session", exec_.session, "Shell session that keeps directory and variables");

  CLI::App* shell = verb("shell", "An interactive shell in a sandbox", [this](Context& c) { return shell_verb(c, ref_, exec_); });
  shell->add_option("sandbox", ref_)->required();
  shell->add_option("-u,--user", exec_.user, "User inside");
  shell->add_option("-w,--workdir", exec_.workdir, "Working directory inside");
  shell->add_option("-e,--env", exec_.env, "NAME=VALUE; can be given again")->allow_extra_args(false);

  CLI::App* attach = verb("attach", "Join a running command; Ctrl-C leaves it running", [this](Context& c) { return attach_verb(c, ref_, exec_id_, interactive_); });
  attach->add_option("sandbox", ref_)->required();
  attach->add_option("exec", exec_id_, "Default: the only one that runs");
  attach->add_flag("-i,--interactive", interactive_, "Standard input goes to it");

  CLI::App* logs = verb("logs", "What commands have printed", [this](Context& c) { return logs_verb(c, ref_, exec_id_, follow_); });
  logs->add_option("sandbox", ref_)->required();
  logs->add_option("exec", exec_id_, "Default: all, one after the other");
  logs->add_flag("-f,--follow", follow_, "Go on as it comes");

  CLI::App* execs = verb("execs", "List the commands of a sandbox", [this](Context& c) { return execs_verb(c, ref_, listing_); });
  execs->add_option("sandbox", ref_)->required();
  add_listing(execs, listing_);

  CLI::App* forward = verb("port-forward", "Serve HTTP ports of a sandbox on this machine", [this](Context& c) {
    return port_forward_verb(c, ref_, refs_, text_.empty() ? "127.0.0.1" : text_);
  });
  forward->add_option("sandbox", ref_)->required();
  forward->add_option("port", refs_, "PORT, LOCAL:PORT or :PORT")->required();
  forward->add_option("--address", text_, "Local IPv4 address (default 127.0.0.1)");
}

void CommandLine::add_files() {
  CLI::App* cp = verb("cp", "Copy files and directories into or out of a sandbox: ID:/path names what is inside",
                      [this](Context& c) { return cp_verb(c, text_, second_, user_, owner_); });
  cp->add_option("from", text_)->required();
  cp->add_option("to", second_)->required();
  cp->add_option("-u,--user", user_, "Acts as this user inside");
  cp->add_option("--owner", owner_, "UID:GID for what a directory brings in");

  CLI::App* fs = family("fs", "Files of a sandbox");
  CLI::App* ls = verb("ls", "List a directory", [this](Context& c) { return fs_ls_verb(c, ref_, text_.empty() ? "/" : text_, recursive_, user_, listing_); }, fs);
  ls->add_option("sandbox", ref_)->required();
  ls->add_option("path", text_);
  ls->add_flag("-R,--recursive", recursive_);
  add_listing(ls, listing_);
  CLI::App* cat = verb("cat", "Print a file", [this](Context& c) { return fs_cat_verb(c, ref_, text_, user_); }, fs);
  CLI::App* rm = verb("rm", "Remove a file or directory", [this](Context& c) { return fs_rm_verb(c, ref_, text_, recursive_, user_); }, fs);
  rm->add_flag("-r,--recursive", recursive_, "With everything below");
  CLI::App* mkdir = verb("mkdir", "Make a directory", [this](Context& c) { return fs_mkdir_verb(c, ref_, text_, parents_, user_); }, fs);
  mkdir->add_flag("-p,--parents", parents_, "And what is missing above; it may be there already");
  for (CLI::App* sub : {cat, rm, mkdir}) {
    sub->add_option("sandbox", ref_)->required();
    sub->add_option("path", text_)->required();
  }
  for (CLI::App* sub : {ls, cat, rm, mkdir}) sub->add_option("-u,--user", user_, "Acts as this user inside");
}

void CommandLine::add_images() {
  for (const bool layers : {false, true}) {
    const std::string collection = layers ? "layers" : "images";
    CLI::App* parent = layers ? family("layer", "Layers: bases, workspaces, toolkits, diffs and verifiers") : family("image", "Images: what sandboxes start from");
    CLI::App* add = verb("import", layers ? "Import a layer" : "Import a base image", [this, collection](Context& c) {
      import_.collection = collection;
      return import_verb(c, import_);
    }, parent);
    add->add_option("name", import_.name, "NAME:TAG to import it as")->required();
    add->add_option("source", import_.source,
                    "Directory, tar (plain, gz, zst, xz; - for standard input), oci:PATH, docker-archive:PATH, docker://REF or debian:SUITE[,PACKAGE...]")
        ->required();
    if (layers) {
      add->add_option("--kind", import_.kind, "base, workspace, toolkit or verifier")->required()->check(CLI::IsMember({"base", "workspace", "toolkit", "verifier"}));
      add->add_option("--at", import_.at, "Where it stands inside (/work/project)");
    }
    add->add_option("--owner", import_.owner, "UID:GID in place of a directory's own owners (0:0)");
    add->add_option("--profile", import_.profile, "lz4: small; plain: can be mapped by virtual machines without a second copy (lz4)")->check(CLI::IsMember({"plain", "lz4"}));
    add->add_option("--authfile", import_.authfile, "Credentials for docker://, as `skopeo login` writes them; the server forgets them");
    add->add_option("--architecture", import_.architecture, "Which image of an OCI layout or registry, as OCI calls it: arm64 (the node's)");
    add->add_flag("-q,--quiet", import_.quiet, "Print the digest only");
    add->add_flag("--json", import_.json, "The whole record");
    if (!layers) {
      CLI::App* pull = verb("pull", "Import a base image from a registry", [this](Context& c) {
        import_.collection = "images";
        import_.source = "docker://" + text_;
        if (import_.name.empty()) import_.name = name_of_reference(text_);
        return import_verb(c, import_);
      }, parent);
      pull->add_option("reference", text_, "REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST")->required();
      pull->add_option("--name", import_.name, "NAME:TAG to call it here (as there, without the registry)");
      pull->add_option("--authfile", import_.authfile, "Credentials, as `skopeo login` writes them; the server forgets them");
      pull->add_option("--profile", import_.profile, "lz4 or plain (lz4)")->check(CLI::IsMember({"plain", "lz4"}));
      pull->add_option("--architecture", import_.architecture, "As OCI calls it: arm64 (the node's)");
      pull->add_flag("-q,--quiet", import_.quiet, "Print the digest only");
      pull->add_flag("--json", import_.json, "The whole record");
    }
    CLI::App* ls = verb("ls", layers ? "List them, or the files in one" : "List them", [this, collection](Context& c) {
      return ref_.empty() ? catalogue_ls_verb(c, collection, listing_) : layer_files_verb(c, ref_, text_.empty() ? "/" : text_, recursive_, listing_);
    }, parent);
    add_listing(ls, listing_);
    if (layers) {
      ls->add_option("ref", ref_, "Name or digest: lists its files");
      ls->add_option("path", text_, "Directory in it (/)");
      ls->add_flag("-R,--recursive", recursive_, "And all that is below");
    }
    CLI::App* inspect = verb("inspect", "Everything about one, as JSON", [this, collection](Context& c) { return catalogue_inspect_verb(c, collection, ref_); }, parent);
    inspect->add_option("ref", ref_, "Name or digest")->required();
    CLI::App* rm = verb("rm", "Remove them", [this, collection](Context& c) { return catalogue_rm_verb(c, collection, refs_); }, parent);
    rm->add_option("ref", refs_, "Names or digests")->required();
    if (!layers) continue;
    add_layer_contents(parent);
    add_layer_garbage(parent);
  }
}

void CommandLine::add_layer_contents(CLI::App* parent) {
  CLI::App* cat = verb("cat", "Print a file of one", [this](Context& c) { return layer_cat_verb(c, ref_, second_); }, parent);
  CLI::App* diff = verb("diff", "What the second has added (+), removed (-) and changed (!); exit code 1 when anything", [this](Context& c) {
    return layer_diff_verb(c, ref_, second_, listing_.json);
  }, parent);
  diff->add_option("before", ref_, "Name or digest")->required();
  diff->add_option("after", second_, "Name or digest")->required();
  diff->add_flag("--json", listing_.json, "A JSON object for each difference");
  CLI::App* verify = verb("verify", "Compare the stored bytes with the digest and check that the image may be mounted", [this](Context& c) {
    return layer_verify_verb(c, refs_, layer_verify_);
  }, parent);
  verify->add_option("ref", refs_, "Names or digests");
  verify->add_flag("--all", layer_verify_.all, "Every layer that has a name");
  verify->add_option("--key", layer_verify_.key, "A builder's public key (PEM file, Ed25519) that must have signed it");
  verify->add_option("--signature", layer_verify_.signature, "The signature's file, as `dsec layer sign` prints it");
  verify->add_flag("--json", layer_verify_.json, "What was found, as JSON");
  CLI::App* sign = verb("sign", "Vouch for one: print the signature of its digest", [this](Context& c) { return layer_sign_verb(c, ref_, second_); }, parent);
  for (CLI::App* sub : {cat, sign}) sub->add_option("ref", ref_, "Name or digest")->required();
  cat->add_option("path", second_, "File in it")->required();
  sign->add_option("--key", second_, "Private key (PEM file, Ed25519)")->required();
  CLI::App* sync = verb("sync", "Put them into the shared store, where every node finds them",
                        [this](Context& c) { return layer_sync_verb(c, refs_, layer_verify_.all, text_); }, parent);
  sync->add_option("ref", refs_, "Names or digests");
  sync->add_flag("--all", layer_verify_.all, "Every layer that has a name");
  sync->add_option("--to", text_, "Into another store, by the name that `dsec serve --sync-store` gave it");
  CLI::App* promote = verb("promote", "Take a packed layer out of quarantine", [this](Context& c) { return layer_promote_verb(c, ref_, pack_.kind, pack_.name); }, parent);
  promote->add_option("ref", ref_, "Its name")->required();
  promote->add_option("--as", pack_.name, "NAME:TAG that it has from now on");
  promote->add_option("--kind", pack_.kind, "Of layers of this kind only");
  CLI::App* optimize = verb("optimize", "Rewrite one so that what is read first lies first: fewer bytes come from the store",
                            [this](Context& c) { return layer_optimize_verb(c, ref_, layer_optimize_); }, parent);
  optimize->add_option("ref", ref_, "Name or digest")->required();
  optimize->add_option("--trace", layer_optimize_.trace, "File of an access trace (default: those that the shared store has of it)");
  optimize->add_option("--as", layer_optimize_.name, "NAME:TAG of the result (default: the same name, which then leads there)");
  optimize->add_option("--kind", layer_optimize_.kind, "Of layers of this kind only");
  optimize->add_flag("--json", layer_optimize_.json, "The new layer, as JSON");
  CLI::App* fetch = verb("fetch", "Take one from the shared store and name it (operators)",
                         [this](Context& c) { return layer_fetch_verb(c, ref_, second_); }, parent);
  fetch->add_option("digest", ref_, "Digest of the layer")->required();
  fetch->add_option("name", second_, "What it is to be called")->required();
}

void CommandLine::add_layer_garbage(CLI::App* parent) {
  CLI::App* gc = verb("gc", "Look which layers nothing holds, and remove those that are due (operators)",
                      [this](Context& c) { return layer_gc_verb(c, collect_, listing_); }, parent);
  gc->add_flag("--dry-run", collect_.dry_run, "Say what keeps each one, and remove nothing");
  gc->add_flag("--store", collect_.store, "In the shared store: what no node's lease names");
  gc->add_option("--condemn-after", collect_.condemn_after, "How long one has to be unused, as 7d");
  gc->add_option("--delete-after", collect_.delete_after, "How long after that it is removed, as 1h");
  add_listing(gc, listing_);
  CLI::App* pin = verb("pin", "Keep one that nothing uses", [this](Context& c) { return layer_pin_verb(c, ref_, text_, second_); }, parent);
  pin->add_option("--reason", text_, "For whoever finds it");
  pin->add_option("--for", second_, "How long, as 30d (default: until it is unpinned)");
  CLI::App* unpin = verb("unpin", "Keep it no longer", [this](Context& c) { return layer_unpin_verb(c, ref_); }, parent);
  for (CLI::App* sub : {pin, unpin}) sub->add_option("ref", ref_, "Name or digest")->required();
  add_listing(verb("pins", "List what is pinned", [this](Context& c) { return layer_pins_verb(c, listing_); }, parent), listing_);
}

void CommandLine::add_administration() {
  CLI::App* login = verb("login", "Remember a server and a key", [this](Context&) {
    return login_verb(text_.empty() ? "default" : text_, ref_.empty() ? "http://127.0.0.1:7780" : ref_, second_);
  });
  login->add_option("url", ref_, "Address of the server (default http://127.0.0.1:7780)");
  login->add_option("--name", text_, "Name of the context (default: default)");
  login->add_option("--key", second_, "API key; without it, read from the terminal or standard input");

  CLI::App* context = family("context", "Servers that are remembered");
  CLI::App* context_ls = verb("ls", "List them", [this](Context&) { return context_ls_verb(listing_); }, context);
  add_listing(context_ls, listing_);
  CLI::App* use = verb("use", "Make one the current one", [this](Context&) { return context_use_verb(text_); }, context);
  CLI::App* forget = verb("rm", "Forget one", [this](Context&) { return context_rm_verb(text_); }, context);
  for (CLI::App* sub : {use, forget}) sub->add_option("name", text_)->required();

  CLI::App* service = family("service", "Egress targets by name");
  CLI::App* service_ls = verb("ls", "List them", [this](Context& c) { return service_ls_verb(c, listing_); }, service);
  add_listing(service_ls, listing_);
  CLI::App* add = verb("add", "Define one", [this](Context& c) { return service_add_verb(c, service_); }, service);
  add->add_option("name", service_.name)->required();
  add->add_option("--host", service_.hosts, "HOST[:PORT], *.HOST for every name below; can be given again")->required()->allow_extra_args(false);
  add->add_option("--address", service_.addresses, "CIDR where the hosts may point although it is private")->allow_extra_args(false);
  add->add_option("--via", service_.via, "HOST:PORT of a parent proxy");
  add->add_option("-e,--env", service_.env, "NAME=VALUE set inside every sandbox that may use it")->allow_extra_args(false);
  CLI::App* service_rm = verb("rm", "Remove them", [this](Context& c) { return service_rm_verb(c, refs_); }, service);
  service_rm->add_option("name", refs_)->required();
  CLI::App* detect = verb("detect", "Define those that the server's own package clients use", [this](Context& c) { return service_detect_verb(c, dry_run_, listing_); }, service);
  detect->add_flag("--dry-run", dry_run_, "Show them only");
  add_listing(detect, listing_);

  CLI::App* project = family("project", "Projects");
  for (const char* action : {"ls", "add"}) {
    CLI::App* sub = verb(action, std::string(action) == "ls" ? "List them" : "Make one",
                         [this, action](Context& c) { return project_verb(c, action, text_, listing_); }, project);
    if (std::string(action) == "ls") add_listing(sub, listing_);
    else sub->add_option("name", text_)->required();
  }
  CLI::App* key = family("key", "API keys");
  for (const char* action : {"ls", "add", "rm"}) {
    CLI::App* sub = verb(action, std::string(action) == "ls" ? "List them" : std::string(action) == "add" ? "Make one and print it" : "Revoke one",
                         [this, action](Context& c) { return key_verb(c, action, second_.empty() ? "default" : second_, text_, owner_.empty() ? "runtime" : owner_, listing_); }, key);
    sub->add_option("--project", second_, "Default: default");
    if (std::string(action) == "ls") add_listing(sub, listing_);
    if (std::string(action) == "add") {
      sub->add_option("--name", text_, "For people");
      sub->add_option("--role", owner_, "viewer, runtime, builder or admin (default runtime)")->check(CLI::IsMember({"viewer", "runtime", "builder", "admin"}));
    }
    if (std::string(action) == "rm") sub->add_option("id", text_)->required();
  }
  CLI::App* node = family("node", "Nodes");
  CLI::App* node_ls = verb("ls", "List them", [this](Context& c) { return node_ls_verb(c, listing_); }, node);
  add_listing(node_ls, listing_);
  verb("whoami", "Project and role of the key in use", [](Context& c) { return whoami_verb(c); });
  CLI::App* version = verb("version", "Version of this program", [this](Context& c) { return version_verb(c, json_); });
  version->add_flag("--json", json_);
  CLI::App* completion = verb("completion", "Completion script for a shell: eval \"$(dsec completion bash)\"", [this](Context&) {
    const auto script = completion_script(text_, verb_tree());
    if (!script.ok()) return fail(script.error(), kUsage);
    print(*script);
    return static_cast<int>(kOk);
  });
  completion->add_option("shell", text_, "bash, zsh or fish")->required();
}

VerbNode node_of(const CLI::App* app) {
  VerbNode node;
  node.name = app->get_name();
  node.description = app->get_description();
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) node.flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) node.flags.push_back("-" + name);
    if (option->get_positional() && !option->nonpositional()) node.arguments.push_back(option->get_name(true));
  }
  for (const CLI::App* sub : app->get_subcommands({})) node.verbs.push_back(node_of(sub));
  return node;
}

}  // namespace

VerbNode verb_tree() {
  const CommandLine line;
  return node_of(&line.app());
}

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  return CommandLine().run(argc, argv);
}

}  // namespace dsec::cli

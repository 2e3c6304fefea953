//! `remora run`, and the preload that shows `/sys/class/infiniband`, with ordinary programs.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

use rustix::process::{Pid, Signal, kill_process};
use support::Folder;
use support::verbs::{Running, described, installed, printed, remora_run};

fn sh(script: &str) -> std::process::Command {
    remora_run(["--", "sh", "-c", script])
}

#[test]
fn the_status_is_the_programs_own() {
    for status in [0, 1, 7, 255] {
        let output = sh(&format!("exit {status}")).output().unwrap();
        assert_eq!(output.status.code(), Some(status));
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{}", described(&output));
    }
}

#[test]
fn signals_reach_the_program() {
    let running = Running::start(&mut sh("kill -KILL $$"));
    assert_eq!(running.output().status.signal(), Some(Signal::KILL.as_raw()));

    let running = Running::start(&mut remora_run(["sleep", "600"]));
    let pid = Pid::from_raw(running.pid().cast_signed()).unwrap();
    // The signal reaches the same process, whether it is still `remora` or already `sleep`.
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(running.output().status.signal(), Some(Signal::TERM.as_raw()));
}

/// Rust ignores SIGPIPE; programs that it starts must not inherit that, or pipelines never end.
#[test]
fn the_program_does_not_ignore_sigpipe() {
    let ignored = printed(&mut remora_run(["--", "grep", "SigIgn", "/proc/self/status"]));
    let mask = u64::from_str_radix(ignored.split_whitespace().nth(1).unwrap(), 16).unwrap();
    assert_eq!(mask & 1 << (Signal::PIPE.as_raw() - 1), 0, "{ignored}");
}

#[test]
fn programs_that_cannot_be_started_give_the_shells_exit_status() {
    let folder = Folder::new();
    let plain = folder.file("plain", 10);
    let orphan = folder.path("orphan");
    fs::write(&orphan, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&orphan, fs::Permissions::from_mode(0o755)).unwrap();
    for (program, status, reason) in [
        ("no-such-program", 127, "PATH"),
        ("./no/such/program", 127, "no such file"),
        (plain.to_str().unwrap(), 126, "may not be executed"),
        (orphan.to_str().unwrap(), 127, "interpreter"),
    ] {
        let output = remora_run(["--", program]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{program}: {errors}");
        assert!(errors.contains(reason), "{program}: {errors}");
    }
}

/// An option that there is none of is no program, and those behind the program are its own.
#[test]
fn options_before_the_program_are_the_commands() {
    let output = remora_run(["--no-such-option", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", described(&output));
    let output = remora_run(["echo", "--no-such-option", "-x"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--no-such-option -x\n");
}

#[test]
fn mistakes_are_reported_before_the_program_starts() {
    let folder = Folder::new();
    for (args, reason) in [
        (vec!["--addr", "nosuch0", "--", "echo"], "no interface or address"),
        (vec!["--log", "/no/such/folder/x", "--", "echo"], "no folder for the log"),
        (vec!["--log", "/", "--", "echo"], "log"),
        (vec!["--impair", "lose=1%", "--", "echo"], "the names are loss, delay"),
        (vec!["--impair", "@/no/such/file", "--", "echo"], "cannot read the impairments"),
        (vec!["--env", "--", "echo"], "cannot be used with"),
        (vec![], "PROGRAM"),
    ] {
        let output = remora_run(&args).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(reason), "{args:?}: {errors}");
    }
    let nowhere = folder.path("nowhere");
    let output = remora_run(["--", "echo"]).env("REMORA_LIB_DIR", &nowhere).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("libremora_verbs.so") && errors.contains("nowhere"), "{errors}");
}

#[test]
fn wishes_become_variables() {
    let folder = Folder::new();
    let log = folder.path("card-%p.log");
    let script = "echo \"$REMORA_ADDR\"; echo \"$REMORA_LOG\"; echo \"$LD_LIBRARY_PATH\"";
    let args = ["--addr", "127.0.7.9", "--log", log.to_str().unwrap(), "--", "sh", "-c", script];
    let out = printed(remora_run(args).env("LD_LIBRARY_PATH", "/opt/x"));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "127.0.7.9");
    assert!(lines[1].starts_with("debug:/") && lines[1].ends_with("card-%p.log"), "{out}");
    assert!(lines[2].ends_with(":/opt/x"), "{out}");

    let out = printed(remora_run(args).env("REMORA_LOG", "trace"));
    assert!(out.contains("trace:/"), "{out}");

    let script = ["--", "sh", "-c", "echo \"$REMORA_IMPAIR\""];
    let out = |wish: &str| printed(&mut remora_run(["--impair", wish].iter().chain(&script)));
    assert_eq!(out("loss=1%,seed=7").trim(), "loss=1%,seed=7");
    let network = folder.path("network");
    fs::write(&network, "off").unwrap();
    let named = format!("@{}", network.canonicalize().unwrap().display());
    assert_eq!(out(&named).trim(), named);
}

/// `eval "$(remora run --env)"` sets what `remora run` sets; and a run within a run adds nothing.
#[test]
fn the_printed_variables_work_without_the_wrapper() {
    let lines = printed(&mut remora_run(["--env", "--addr", "127.0.7.9"]));
    let variables = "env | grep -E '^(LD_|REMORA_)' | sort";
    let shell = format!("unset LD_LIBRARY_PATH LD_PRELOAD REMORA_ADDR; {lines}{variables}");
    let by_eval = printed(std::process::Command::new("sh").args(["-c", &shell]));
    let by_run = printed(&mut remora_run(["--addr", "127.0.7.9", "--", "sh", "-c", variables]));
    assert_eq!(by_eval, by_run);
    let remora = env!("CARGO_BIN_EXE_remora");
    let twice = format!("{remora} run --addr 127.0.7.9 -- sh -c \"{variables}\"");
    assert_eq!(printed(&mut sh(&twice)), by_run);
}

#[test]
fn links_are_the_users_own_and_can_be_made_at_once() {
    let folder = Folder::new();
    let runtime = folder.path("runtime");
    fs::create_dir(&runtime).unwrap();
    let start = || Running::start(sh("ls $LD_LIBRARY_PATH").env("XDG_RUNTIME_DIR", &runtime));
    let all: Vec<Running> = (0..8).map(|_| start()).collect();
    for one in all {
        let names = one.succeeds();
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            assert!(names.lines().any(|line| line == name), "{names}");
        }
    }
    let made = runtime.join("remora");
    assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o700);
    // Open to other users, who could have changed the links in it.
    fs::set_permissions(&made, fs::Permissions::from_mode(0o777)).unwrap();
    let path = sh("echo $LD_LIBRARY_PATH").env("XDG_RUNTIME_DIR", &runtime).output().unwrap();
    assert!(!String::from_utf8_lossy(&path.stdout).contains(made.to_str().unwrap()));
}

#[test]
fn the_kernels_folders_show_the_card() {
    let read = |script: &str| printed(&mut sh(script)).trim().to_owned();
    assert_eq!(read("ls /sys/class/infiniband"), "remora0");
    assert_eq!(read("cd /sys/class/infiniband/remora0 && cat ports/1/link_layer"), "Ethernet");
    assert_eq!(read("cat /sys/class/infiniband/*/ports/1/gid_attrs/types/0"), "RoCE v2");
    assert_eq!(read("cat /sys/class/infiniband_verbs/uverbs0/ibdev"), "remora0");
    assert_eq!(read("test -e /dev/infiniband/uverbs0 && echo yes"), "yes");
    let guid = read("cat /sys/class/infiniband/remora0/node_guid");
    assert!(guid.len() == 19 && guid != "0000:0000:0000:0000", "{guid}");
    // All other paths are the machine's own.
    let hosts = fs::read_to_string("/proc/sys/kernel/ostype").unwrap();
    assert_eq!(read("cat /proc/sys/kernel/ostype"), hosts.trim());
    assert_eq!(read("ls /sys/class/net | grep -x lo"), "lo");

    if installed(&[("python3", "python3")]) {
        let script = "import glob, os\n\
            print(os.listdir('/sys/class/infiniband'), os.path.isdir('/sys/class/infiniband'))\n\
            print(open(glob.glob('/sys/class/infiniband/*/ports/1/state')[0]).read())";
        let out = printed(&mut remora_run(["--", "python3", "-c", script]));
        assert!(out.contains("['remora0'] True") && out.contains("ACTIVE"), "{out}");
    }
}

#[test]
fn a_static_program_is_warned_about() {
    if !installed(&[("cc", "gcc")]) {
        return;
    }
    let folder = Folder::new();
    let (source, program) = (folder.path("main.c"), folder.path("main"));
    fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    let built = std::process::Command::new("cc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", described(&built));
    let output = remora_run([&program]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "the program runs despite the warning");
    assert!(errors.contains("linked statically"), "{errors}");
}

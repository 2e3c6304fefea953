//! The shared object, used by the distribution's programs.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, thread, time::Duration};

/// A directory with links to the library under the names that programs look for.
struct Links(PathBuf);

impl Links {
    fn new(test: &str) -> Links {
        let name = format!("remora-library-{test}-{}", std::process::id());
        let directory = env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        for link in ["libibverbs.so.1", "librdmacm.so.1"] {
            symlink(library(), directory.join(link)).unwrap();
        }
        Links(directory)
    }

    /// A program that runs on the library; `None`, with a message, if it is not installed.
    fn program(&self, name: &str) -> Option<Command> {
        let paths = env::var_os("PATH").unwrap_or_default();
        if !env::split_paths(&paths).any(|dir| dir.join(name).exists()) {
            println!("skipped: {name} is not installed (./ci.sh setup brings it)");
            assert!(env::var_os("CI").is_none(), "CI must have it installed");
            return None;
        }
        let mut command = Command::new(name);
        command.env("LD_LIBRARY_PATH", &self.0).env_remove("REMORA_ADDR");
        Some(command)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Cargo puts it beside the tests.
fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libremora_verbs.so")
}

/// The symbols that a library exports, with versions.
fn names(library: &Path) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    let output = nm.args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output();
    let output = String::from_utf8(output.expect("nm, of binutils").stdout).unwrap();
    output
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .filter(|name| name.contains('@'))
        .map(str::to_owned)
        .collect()
}

/// What of `theirs` this library lacks; `@@` only says which version new programs are linked to.
fn missing(theirs: &BTreeSet<String>) -> Vec<String> {
    let plain = |name: &String| name.replace("@@", "@");
    let ours: BTreeSet<String> = names(&library()).iter().map(plain).collect();
    theirs.iter().map(plain).filter(|name| !ours.contains(name)).collect()
}

/// The newest release: see the head of the list.
#[test]
fn symbols_of_the_newest_release_are_there() {
    let listed = include_str!("symbols/rdma-core.txt").lines();
    let theirs: BTreeSet<String> =
        listed.filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    assert!(theirs.len() > 300, "only {} are listed", theirs.len());
    let missing = missing(&theirs);
    assert!(missing.is_empty(), "missing of rdma-core's newest release:\n{}", missing.join("\n"));
}

#[test]
fn symbols_of_the_distribution_are_there() {
    let places = ["x86_64-linux-gnu", "aarch64-linux-gnu", "lib64"];
    for (library, at_least) in [("libibverbs.so.1", 100), ("librdmacm.so.1", 60)] {
        let theirs = places.map(|place| format!("/usr/lib/{place}/{library}"));
        let Some(theirs) = theirs.iter().map(Path::new).find(|path| path.exists()) else {
            println!("skipped: the distribution's {library} is not installed");
            assert!(env::var_os("CI").is_none(), "CI must have it installed");
            continue;
        };
        let theirs = names(theirs);
        assert!(theirs.len() > at_least, "{theirs:?}");
        let missing = missing(&theirs);
        assert!(missing.is_empty(), "missing of the installed {library}:\n{}", missing.join("\n"));
    }
}

#[test]
fn programs_find_the_device() {
    let links = Links::new("devices");
    if let Some(mut devices) = links.program("ibv_devices") {
        let output = devices.output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("remora0"), "{output:?}");
    }
    if let Some(mut devinfo) = links.program("ibv_devinfo") {
        let output = devinfo.arg("-v").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        for expected in ["PORT_ACTIVE (4)", "RoCE v2", "Ethernet", "ODP_SUPPORT_IMPLICIT"] {
            assert!(text.contains(expected), "no {expected} in\n{text}");
        }
    }
}

/// Vendors' libraries, and programs linked to them, load with every symbol resolved at once.
#[test]
fn vendors_libraries_load() {
    let links = Links::new("vendors");
    for library in ["libmlx5.so.1", "libmlx4.so.1", "libefa.so.1"] {
        let Some(mut devices) = links.program("ibv_devices") else { return };
        let output = devices.env("LD_PRELOAD", library).env("LD_BIND_NOW", "1").output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("cannot open shared object file") {
            println!("skipped: {library} is not installed");
            continue;
        }
        assert!(output.status.success() && errors.is_empty(), "{library}: {errors}");
    }
}

/// Runs a server and a client; both must succeed.
fn pair(links: &Links, program: &str, port: u16, args: &[&str]) {
    let start = |host: Option<&str>| -> Option<Child> {
        let mut command = links.program(program)?;
        command.args(["-n", "200", "-p", &port.to_string()]).args(args).args(host);
        Some(command.stdout(Stdio::null()).spawn().unwrap())
    };
    let Some(mut server) = start(None) else { return };
    // The client gives up at once if its server does not listen yet.
    for _ in 0..200 {
        let mut client = start(Some("127.0.0.1")).unwrap();
        if client.wait().unwrap().success() {
            assert!(server.wait().unwrap().success(), "the server of {program} {args:?}");
            return;
        }
        assert!(server.try_wait().unwrap().is_none(), "{program} {args:?} failed");
        thread::sleep(Duration::from_millis(20));
    }
    server.kill().ok();
    server.wait().ok();
    panic!("{program} {args:?} did not succeed");
}

#[test]
fn two_processes_find_each_other_without_configuration() {
    let links = Links::new("pingpong");
    // Each pair has a port of its own, in a range of this test's process, below the ports that the
    // system gives to clients.
    let mut port = 31_000 + (std::process::id() % 100) as u16 * 16;
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        for args in [&[][..], &["-g", "0"], &["-g", "1", "-e"]] {
            pair(&links, program, port, args);
            port += 1;
        }
    }
    pair(&links, "ibv_rc_pingpong", port, &["-g", "0", "-o"]);
}

//! The shared object, used by the distribution's programs.

#[path = "support/links.rs"]
mod links;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use links::{is_installed, library, links, skips};

/// A program that runs on the library; `None` if it is not installed.
fn program(name: &str) -> Option<Command> {
    is_installed(name).then(|| {
        let mut command = Command::new(name);
        command.env("LD_LIBRARY_PATH", links()).env_remove("REMORA_ADDR");
        command
    })
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
            skips::has_not(&format!("the distribution's {library} is not there"));
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
    if let Some(mut devices) = program("ibv_devices") {
        let output = devices.output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("remora0"), "{output:?}");
    }
    if let Some(mut devinfo) = program("ibv_devinfo") {
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
    for library in ["libmlx5.so.1", "libmlx4.so.1", "libefa.so.1"] {
        let Some(mut devices) = program("ibv_devices") else { return };
        let output = devices.env("LD_PRELOAD", library).env("LD_BIND_NOW", "1").output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("cannot open shared object file") {
            skips::lacks(&format!("{library} is not installed"));
            continue;
        }
        assert!(output.status.success() && errors.is_empty(), "{library}: {errors}");
    }
}

//! What a machine lacks, so that a test has nothing to test: a tool, which CI has to have, or a
//! feature or a right, which it may lack. Either way that is said where people read it.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Write;

/// Is this program installed? If not, says what to install; in CI that is a failure.
pub(crate) fn has(program: &str, package: &str) -> bool {
    is_there(program) || has_not(&format!("{program} (package {package}) is not installed"))
}

/// Is this program installed? Nothing is said of it.
pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A tool is missing: a failure in CI. Returns `false`.
pub(crate) fn has_not(what: &str) -> bool {
    assert!(std::env::var_os("CI").is_none(), "{what}: run ./ci.sh setup");
    lacks(&format!("{what}: ./ci.sh setup installs it"));
    false
}

/// The kernel does not have something, or this user may not use it. (The tests' harness shows what
/// a test prints only if it fails; this it does not see.)
pub(crate) fn lacks(what: &str) {
    let test = std::thread::current();
    let name = test.name().unwrap_or("a test");
    writeln!(std::io::stderr(), "skipped: {name}: {what}").ok();
}

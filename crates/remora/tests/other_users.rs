//! A process of another user meets a daemon: it is kept out, or has what the policy grants, and
//! never what is another user's. Only root can start one.

mod daemon;
#[path = "support/skips.rs"]
mod skips;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use daemon::Daemon;
use remora::daemon::{Observer, Policy};
use remora::message::{KEEP_VARIABLE, Keep, SOCKET_VARIABLE, Ticket};
use remora::prelude::*;

const LONG: Duration = Duration::from_secs(20);
/// A user that no system has.
const STRANGER: u32 = 61_185;
/// What the stranger's program is told, besides the socket.
const TICKET: &str = "REMORA_TEST_TICKET";
const EXPECTED: &str = "REMORA_TEST_EXPECTED";

fn socket() -> PathBuf {
    std::env::var_os(SOCKET_VARIABLE).expect("the test says where the daemon listens").into()
}

fn options() -> DeviceOptions {
    DeviceOptions::new().attach(socket())
}

/// Neither attaches nor observes.
#[test]
#[ignore = "a program for other tests"]
fn is_kept_out() {
    let expected = std::env::var(EXPECTED).unwrap();
    let attached = options().open().unwrap_err().to_string();
    assert!(attached.contains(&expected), "{attached}");
    let observed = Observer::connect(Some(&socket())).unwrap_err().to_string();
    assert!(observed.contains(&expected), "{observed}");
}

/// Has a session of its own, and nothing of another user's, whose ticket it has found.
#[test]
#[ignore = "a program for other tests"]
fn has_only_its_own() {
    let device = options().open().unwrap();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::all()).unwrap();
    let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    qp.write(b"mine", memory.slice(..4).remote()).wait(LONG).unwrap();
    assert_eq!(memory.slice(..4).to_vec().unwrap(), b"mine");

    let ticket: Ticket = std::env::var(TICKET).unwrap().parse().unwrap();
    for keep in [Keep::No, Keep::Forever] {
        let taken = options().take_over(ticket.clone(), keep).open();
        let refused = taken.unwrap_err().to_string();
        assert!(refused.contains("no session of this name and token"), "{refused}");
    }
    let observer = Observer::connect(Some(&socket())).unwrap();
    let seen = observer.status().unwrap().sessions;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].pid as u32, std::process::id());
    // By its name, and by every number near its own.
    let numbers = (0..64).filter(|number| *number != seen[0].session);
    for name in numbers.map(|number| number.to_string()).chain([ticket.name.clone()]) {
        let refused = observer.evict(&name).unwrap_err().to_string();
        assert!(refused.contains("there is no session"), "{refused}");
    }
    for text in ["loss=100%", "off"] {
        let refused = observer.impair(text).unwrap_err().to_string();
        assert!(refused.contains("only the user of the daemon, and root"), "{refused}");
    }
    observer.evict(&seen[0].name).unwrap();
    assert!(device.alloc_pd().is_err(), "a user may end a session of their own");
}

/// A folder in which the stranger finds this program. It ends with the test.
struct Stranger(PathBuf);

impl Stranger {
    /// `None` where this process may start no programs of others.
    fn new(name: &str) -> Option<Stranger> {
        if !rustix::process::geteuid().is_root() {
            skips::lacks("only root can start a program of another user");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("remora-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let program = folder.join("program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Some(Stranger(folder))
    }

    /// Runs one of the programs above, as another user.
    fn runs(&self, test: &str, daemon: &Daemon, (variable, value): (&str, &str)) {
        let mut command = Command::new(self.0.join("program"));
        command.args(["--ignored", "--exact", test, "--nocapture"]).current_dir(&self.0);
        command.env(SOCKET_VARIABLE, &daemon.socket).env(variable, value);
        command.env_remove(KEEP_VARIABLE).uid(STRANGER).gid(STRANGER);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{errors}");
        assert!(text.contains("1 passed"), "{text}");
    }

    fn policy(&self, text: &str) -> Policy {
        let file = self.0.join("policy.toml");
        fs::write(&file, text).unwrap();
        Policy::read(&file).unwrap()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn another_user_does_not_attach_unless_the_policy_says_so() {
    let Some(stranger) = Stranger::new("kept-out") else { return };
    let daemon = Daemon::start();
    stranger.runs("is_kept_out", &daemon, (EXPECTED, "ermission denied"));
    // The rights to the file are not all that keeps them out.
    fs::set_permissions(&daemon.socket, Permissions::from_mode(0o666)).unwrap();
    stranger.runs("is_kept_out", &daemon, (EXPECTED, "may not attach"));
    // A policy for somebody else.
    let policy = stranger.policy("[users.61186]\nattach = true\n");
    let daemon = Daemon::with(policy);
    stranger.runs("is_kept_out", &daemon, (EXPECTED, "may not attach"));
    assert!(daemon.observer().status().unwrap().sessions.is_empty());
}

#[test]
fn another_user_gets_nothing_of_a_session_that_is_not_theirs() {
    let Some(stranger) = Stranger::new("stranger") else { return };
    let policy = stranger.policy(&format!("[users.{STRANGER}]\nattach = true\n"));
    let daemon = Daemon::with(policy);
    let options = DeviceOptions::new().attach(&daemon.socket);
    let device = options.keep("treasure", Keep::Forever).open().unwrap();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::all()).unwrap();
    let ticket = device.ticket().unwrap().to_string();
    stranger.runs("has_only_its_own", &daemon, (TICKET, &ticket));
    let qp = domain.create_qp(&QueuePairOptions::new()).unwrap();
    qp.loop_back(&qp, Access::all()).unwrap();
    qp.write(b"treasure", memory.slice(..8).remote()).wait(LONG).unwrap();
    assert_eq!(memory.slice(..8).to_vec().unwrap(), b"treasure");
    daemon.observer().evict("treasure").unwrap();
}

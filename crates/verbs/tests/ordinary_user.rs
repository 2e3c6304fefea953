//! Programs of ordinary users, and of different users, that find each other.
//!
//! If an ordinary user runs the tests, all of them cover the first case. Run by root, this test
//! gives up its rights for the programs that it starts.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod cm;

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{env, fs};

use cm::{Program, alone, is_installed, port, skips};

/// User ids that no system has given to a user: a process needs no name for its id.
const ALICE: u32 = 65_534;
const BOB: u32 = 61_184;

/// A folder that other users may read, with the library and home directories.
struct Machine(PathBuf);

impl Machine {
    fn new() -> Machine {
        let folder = env::temp_dir().join(format!("remora-users-{}", process::id()));
        let mode = |path: &Path, mode| {
            fs::create_dir_all(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let lib = folder.join("lib");
        mode(&folder, 0o755);
        mode(&lib, 0o755);
        let library = env::current_exe().unwrap().with_file_name("libremora_verbs.so");
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            std::os::unix::fs::symlink("libremora_verbs.so", lib.join(name)).unwrap();
        }
        let copy = lib.join("libremora_verbs.so");
        fs::copy(library, &copy).unwrap();
        fs::set_permissions(copy, fs::Permissions::from_mode(0o755)).unwrap();
        for user in [ALICE, BOB] {
            let home = folder.join(user.to_string());
            mode(&home, 0o700);
            chown(&home, Some(user), Some(user)).unwrap();
        }
        Machine(folder)
    }

    /// Makes a command run as `user`.
    fn give(&self, command: &mut Command, user: u32) {
        let home = self.0.join(user.to_string());
        command
            .env("LD_LIBRARY_PATH", self.0.join("lib"))
            .env("HOME", &home)
            .env("TMPDIR", &home)
            .env("XDG_RUNTIME_DIR", &home)
            .current_dir(&home)
            .uid(user)
            .gid(user);
    }

    /// Can a process change to another user, and can that user reach the library?
    fn works(&self) -> bool {
        let mut test = Command::new("test");
        test.arg("-r").arg(self.0.join("lib/libremora_verbs.so"));
        self.give(&mut test, ALICE);
        test.status().is_ok_and(|status| status.success())
    }

    fn start(&self, command: &str, user: u32) -> Program {
        Program::start_with(command, |command| self.give(command, user))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn users_find_each_other() {
    if !is_root() {
        return skips::lacks("this is an ordinary user already, as in all other tests");
    }
    let machine = Machine::new();
    if !machine.works() {
        let folder = machine.0.display();
        return skips::lacks(&format!("no rights to give up, or others cannot read {folder}"));
    }
    let _alone = alone();
    if is_installed("ibv_devinfo") {
        let (code, said) = machine.start("ibv_devinfo", ALICE).end();
        assert!(code == Some(0) && said.contains("PORT_ACTIVE"), "{said}");
    }
    for (server, client) in [(ALICE, ALICE), (ALICE, BOB), (BOB, 0)] {
        for (program, server_words, client_words) in [
            ("ibv_rc_pingpong", "-n 100 -p PORT", "-n 100 -p PORT 127.0.0.1"),
            ("rping", "-s -C 3 -p PORT", "-c -a 127.0.0.1 -C 3 -p PORT"),
            ("ib_write_bw", "-n 100 -p PORT", "-n 100 -p PORT 127.0.0.1"),
        ] {
            if !is_installed(program) {
                continue;
            }
            let port = port();
            let command = |words: &str| {
                let words = words.replace("PORT", &port.to_string());
                format!("{program} {words}")
            };
            let mut first = machine.start(&command(server_words), server);
            match program {
                "rping" => first.listens(port),
                _ => first.holds("tcp", port),
            }
            let mut second = match client {
                0 => Program::start(&command(client_words)),
                user => machine.start(&command(client_words), user),
            };
            let ((code, said), users) = (second.end(), (server, client));
            assert_eq!(code, Some(0), "{program} {users:?}: {said}\nserver:\n{}", first.said());
            let (code, said) = first.end();
            assert_eq!(code, Some(0), "{program} {users:?}: {said}");
        }
    }
}

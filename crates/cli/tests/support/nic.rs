//! `remora nic` as a process.

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use serde_json::Value;

use super::{Folder, Killed, command};

/// A daemon; it ends with the test.
pub(crate) struct Daemon {
    child: Killed,
    pub(crate) folder: Folder,
}

impl Daemon {
    pub(crate) fn start() -> Daemon {
        let folder = Folder::new();
        let mut nic = command(["nic", "--json", "--socket"]);
        let nic = nic.arg(folder.path("nic.sock")).stdout(Stdio::piped());
        let mut child = Killed(nic.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("address"), "{line}");
        Daemon { child, folder }
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        command(args).env("REMORA_NIC", self.folder.path("nic.sock")).output().unwrap()
    }

    pub(crate) fn succeed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.succeed(args)).unwrap()
    }
}

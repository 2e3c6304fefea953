//! systemd judges the units: settings that it does not know, and words that it cannot read.

#[path = "../../remora/tests/support/skips.rs"]
mod skips;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with the units, which start the command as it was built here.
struct Units(PathBuf);

impl Units {
    /// `change` changes each unit's text.
    fn new(name: &str, change: impl Fn(&str) -> String) -> Units {
        let folder = format!("remora-units-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        for path in units() {
            let text = std::fs::read_to_string(&path).unwrap();
            let built = concat!("\"", env!("CARGO_BIN_EXE_remora"), "\"");
            let text = text.replace("/usr/bin/remora", built);
            std::fs::write(folder.join(path.file_name().unwrap()), change(&text)).unwrap();
        }
        Units(folder)
    }

    /// What systemd says of them: the machine's, and those of users, by their managers' rules.
    fn judge(&self) -> String {
        let files = units().into_iter().map(|path| self.0.join(path.file_name().unwrap()));
        let (of_users, of_machine): (Vec<_>, Vec<_>) = files.partition(|path| is_of_users(path));
        [("--system", of_machine), ("--user", of_users)].map(|of| self.judge_those(of)).join("")
    }

    fn judge_those(&self, (whose, files): (&str, Vec<PathBuf>)) -> String {
        let mut command = Command::new("systemd-analyze");
        command.args([whose, "verify"]).args(files).env("SYSTEMD_PAGER", "");
        // A user's manager has such a folder.
        command.env("XDG_RUNTIME_DIR", &self.0);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        // (It reads the machine's units, too, and says what it thinks of them.)
        let said = String::from_utf8_lossy(&said).into_owned();
        said.lines()
            .filter(|line| line.contains("remora-"))
            .fold(String::new(), |all, line| all + line + "\n")
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Is it a unit of a user's manager?
fn is_of_users(path: &Path) -> bool {
    path.file_stem().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with("-user"))
}

/// The units of this project.
fn units() -> Vec<PathBuf> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let files = std::fs::read_dir(scripts).unwrap().map(|entry| entry.unwrap().path());
    let is_unit = |path: &PathBuf| {
        let end = path.extension().and_then(|end| end.to_str());
        matches!(end, Some("service" | "socket"))
    };
    files.filter(is_unit).collect()
}

#[test]
fn systemd_takes_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skips::lacks("this machine has no systemd-analyze");
    }
    assert_eq!(units().len(), 4);
    assert_eq!(units().iter().filter(|path| is_of_users(path)).count(), 1);
    let said = Units::new("as-they-are", str::to_owned).judge();
    assert_eq!(said, "");
    // It would have said so.
    let said = Units::new("unknown", |text| text.replace("LimitNOFILE", "LimitFiles")).judge();
    assert_eq!(said.matches("LimitFiles").count(), 3, "{said}");
    let said = Units::new("no-words", |text| text.replace("Restart=", "Restart=now and ")).judge();
    assert_eq!(said.matches("now and ").count(), 3, "{said}");
}

//! The program to run: its file, and what about it may keep Remora's library out.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::elf;

/// What is known of a program before it runs.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its file.
    pub(crate) path: PathBuf,
    /// The ELF file that the system will load: for a script, its interpreter.
    pub(crate) elf: Option<elf::Elf>,
    /// The file that the system will load.
    pub(crate) binary: PathBuf,
}

/// Something about a program that its user should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Concern {
    /// How it affects Remora's library.
    pub(crate) reach: Reach,
    /// What was found.
    pub(crate) found: String,
    /// What the user should do.
    pub(crate) advice: String,
}

/// How Remora's library gets into a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Not at all.
    Never,
    /// By `LD_PRELOAD` only.
    OnlyPreloaded,
    /// By `LD_LIBRARY_PATH` only; the program does not start with `LD_PRELOAD`.
    OnlyUnpreloaded,
}

/// Why there is no such program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoProgram {
    /// No such file.
    NotFound,
    /// The file exists, but may not be executed.
    NotExecutable,
}

/// Finds a program as the shell does: by its path if the name has a slash, else along `PATH`.
pub(crate) fn find(name: &OsStr) -> Result<Program, NoProgram> {
    let path = if name.as_encoded_bytes().contains(&b'/') {
        executable(Path::new(name))?
    } else {
        let mut worst = NoProgram::NotFound;
        let paths = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        let found = env::split_paths(&paths).find_map(|folder| {
            executable(&folder.join(name))
                .inspect_err(|why| {
                    if *why == NoProgram::NotExecutable {
                        worst = *why;
                    }
                })
                .ok()
        });
        found.ok_or(worst)?
    };
    let binary = interpreter_of(&path, 4);
    Ok(Program { elf: elf::read(&binary).ok().flatten(), path, binary })
}

fn executable(path: &Path) -> Result<PathBuf, NoProgram> {
    let found = fs::metadata(path).map_err(|_| NoProgram::NotFound)?;
    if found.is_file() && found.mode() & 0o111 != 0 {
        Ok(path.to_owned())
    } else {
        Err(NoProgram::NotExecutable)
    }
}

/// The interpreter that `#!` names, through `env` and at most `depth` scripts.
fn interpreter_of(path: &Path, depth: usize) -> PathBuf {
    let first_line = || {
        let mut line = Vec::new();
        BufReader::new(File::open(path).ok()?.take(256)).read_until(b'\n', &mut line).ok()?;
        String::from_utf8(line.strip_prefix(b"#!")?.to_vec()).ok()
    };
    let Some(line) = first_line().filter(|_| depth > 0) else { return path.to_owned() };
    let mut words = line.split_ascii_whitespace();
    let Some(interpreter) = words.next() else { return path.to_owned() };
    let interpreter = Path::new(interpreter);
    if interpreter.file_name() == Some(OsStr::new("env"))
        && let Some(named) = words.find(|word| !word.starts_with('-') && !word.contains('='))
        && let Ok(program) = find(OsStr::new(named))
    {
        return program.binary;
    }
    interpreter_of(interpreter, depth - 1)
}

impl Program {
    /// Properties of this program that may keep Remora's library, or its preload, out.
    pub(crate) fn concerns(&self) -> Vec<Concern> {
        let mut concerns = Vec::new();
        let name = self.binary.display();
        let mut add = |reach, found: String, advice: &str| {
            concerns.push(Concern { reach, found, advice: advice.to_owned() });
        };
        if self.gains_privileges() {
            add(
                Reach::Never,
                format!("{name} gains privileges when it starts (set-user-ID or capabilities)"),
                "the dynamic linker then ignores LD_LIBRARY_PATH and LD_PRELOAD: run a copy of it \
                 without them, or as the user it changes to",
            );
        }
        let Some(elf) = &self.elf else { return concerns };
        if !elf.native {
            add(
                Reach::Never,
                format!("{name} is made for another kind of machine than this `remora`"),
                "use a `remora` and libraries that are built for the same kind",
            );
        } else if elf.interpreter.is_none() {
            add(
                Reach::Never,
                format!("{name} is linked statically"),
                "it has a libibverbs of its own, or none, and loads no other: link it dynamically",
            );
        }
        if let Some(bundled) = elf.needed.iter().find(|name| is_renamed(name)) {
            add(
                Reach::OnlyPreloaded,
                format!("{name} brings its own {bundled}"),
                "it runs on Remora by LD_PRELOAD only: do not use --no-preload",
            );
        }
        if !elf.rpath.is_empty() {
            add(
                Reach::OnlyPreloaded,
                format!("{name} has an RPATH ({}), which goes before LD_LIBRARY_PATH", elf.rpath),
                "it runs on Remora by LD_PRELOAD only: do not use --no-preload",
            );
        }
        if elf.needed.iter().any(|name| name.starts_with("libasan.so")) {
            add(
                Reach::OnlyUnpreloaded,
                format!("{name} is built with AddressSanitizer, which must be loaded first"),
                "use --no-preload, or set ASAN_OPTIONS=verify_asan_link_order=0",
            );
        }
        concerns
    }

    /// Is it set-user-ID or set-group-ID to another user, or does it have file capabilities?
    fn gains_privileges(&self) -> bool {
        let Ok(file) = fs::metadata(&self.binary) else { return false };
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let set_id = file.mode() & 0o4000 != 0 && file.uid() != uid.as_raw()
            || file.mode() & 0o2010 == 0o2010 && file.gid() != gid.as_raw();
        let mut room = [0; 64];
        let capabilities = rustix::fs::getxattr(&self.binary, "security.capability", &mut room[..]);
        set_id || (capabilities.is_ok_and(|len| len > 0) && !uid.is_root())
    }
}

/// Is it a copy of libibverbs or librdmacm under another name, as packagers make
/// (`libibverbs-1a2b.so.1`)?
fn is_renamed(library: &str) -> bool {
    ["libibverbs", "librdmacm"]
        .iter()
        .any(|known| library.strip_prefix(known).is_some_and(|rest| !rest.starts_with(".so")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_shell_finds_them() {
        assert!(find("sh".as_ref()).unwrap().path.is_absolute());
        assert_eq!(find("no-such-program".as_ref()).unwrap_err(), NoProgram::NotFound);
        assert_eq!(find("./no/such".as_ref()).unwrap_err(), NoProgram::NotFound);
        assert_eq!(find("/proc/self/maps".as_ref()).unwrap_err(), NoProgram::NotExecutable);
        assert_eq!(find("/".as_ref()).unwrap_err(), NoProgram::NotExecutable);
    }

    #[test]
    fn the_interpreter_of_a_script_is_examined() {
        let path = env::temp_dir().join(format!("remora-script-{}", std::process::id()));
        for first in ["#!/bin/sh -e\n", "#!/usr/bin/env -S sh\n"] {
            fs::write(&path, first).unwrap();
            let elf = elf::read(&interpreter_of(&path, 4)).unwrap();
            assert!(elf.is_some_and(|elf| elf.native), "{first}");
        }
        fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        interpreter_of(&path, 4);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn only_unusual_programs_raise_concerns() {
        let mut program = find("sh".as_ref()).unwrap();
        assert_eq!(program.concerns(), []);
        let elf = program.elf.as_mut().unwrap();
        elf.rpath = "/opt/lib".into();
        elf.needed.extend(["libibverbs-4b2a.so.1".into(), "libasan.so.8".into()]);
        let reach: Vec<Reach> = program.concerns().iter().map(|concern| concern.reach).collect();
        let preloaded = Reach::OnlyPreloaded;
        assert_eq!(reach, [preloaded, preloaded, Reach::OnlyUnpreloaded]);
        program.elf.as_mut().unwrap().interpreter = None;
        assert!(program.concerns().iter().any(|concern| concern.reach == Reach::Never));
    }

    #[test]
    fn renamed_libraries_are_distinguished_from_the_real_ones() {
        assert!(is_renamed("libibverbs-1a2b3c.so.1.14.44") && is_renamed("librdmacm-9.so.1"));
        assert!(!is_renamed("libibverbs.so.1") && !is_renamed("librdmacm.so") && !is_renamed("x"));
    }
}

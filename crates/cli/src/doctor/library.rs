//! Checks of the verbs library: is it there, and would a program find it?

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use super::check::{Check, Status};
use crate::failure::told;
use crate::verbs::elf;
use crate::verbs::environment::{LIBRARY_PATH, PRELOAD, Variables, Wishes};
use crate::verbs::libraries::{Libraries, SYSFS, VERBS};
use crate::verbs::program::{self, NoProgram, Program, Reach};

/// Symbol versions to which programs and vendor libraries are linked. Private ones are named after
/// releases of rdma-core.
const NODES: [&str; 8] = [
    "IBVERBS_1.0",
    "IBVERBS_1.1",
    "IBVERBS_1.14",
    "IBVERBS_PRIVATE_34",
    "IBVERBS_PRIVATE_57",
    "IBVERBS_PRIVATE_59",
    "RDMACM_1.0",
    "RDMACM_1.3",
];

/// Checks the library, and `program` if one is given.
pub(super) fn look(program: &[OsString]) -> Vec<Check> {
    let libraries = match Libraries::find() {
        Ok(libraries) => libraries,
        Err(error) => {
            let advice = "build it or name its folder: programs cannot run on Remora without it";
            return vec![Check::fail("library", told(&error), advice)];
        }
    };
    let mut checks = vec![nodes(&libraries.verbs)];
    if libraries.sysfs.is_none() {
        checks.push(Check::warn(
            "sysfs preload",
            format!("{SYSFS} is not beside {}", libraries.verbs.display()),
            "programs that read /sys/class/infiniband themselves will find no device; build it \
             (`cargo build --release`)",
        ));
    }
    match Wishes::default().variables(&libraries) {
        Ok(variables) => match program.first() {
            Some(name) => look_at_program(name, &variables, &mut checks),
            None => checks.push(environment(&variables)),
        },
        Err(error) => checks.push(Check::fail(
            "links",
            told(&error),
            "`remora run` needs a folder of yours for the names of the libraries",
        )),
    }
    checks
}

/// Does the library have the symbol versions that programs are linked to, and does it load?
fn nodes(path: &Path) -> Check {
    let found = match elf::read(path) {
        Ok(Some(elf)) if elf.native => elf,
        Ok(_) => {
            let found = format!("{} is no library for this kind of machine", path.display());
            return Check::fail(
                "library",
                found,
                "build it on this machine (`cargo build --release`)",
            );
        }
        Err(error) => {
            let found = format!("cannot read {}: {error}", path.display());
            return Check::fail("library", found, "check its permissions");
        }
    };
    let missing: Vec<&str> = NODES
        .into_iter()
        .filter(|node| !found.versions.iter().any(|version| version == node))
        .collect();
    if !missing.is_empty() {
        return Check::fail(
            "library",
            format!("{} lacks the symbol versions {}", path.display(), missing.join(", ")),
            format!("it may be another library called {VERBS}: build Remora's again"),
        );
    }
    let objections = match linker() {
        Some(linker) => trace(Path::new(&linker), path, &Vec::new()).objections,
        None => Vec::new(),
    };
    if let Some(first) = objections.first() {
        let found = format!("{} does not load: {first}", path.display());
        return Check::fail(
            "library",
            found,
            "it may have been built on a newer system: build it on this one",
        );
    }
    Check::ok(
        "library",
        format!("{}, with {} symbol versions", path.display(), found.versions.len()),
    )
}

/// The dynamic linker of this program.
fn linker() -> Option<String> {
    elf::read(&env::current_exe().ok()?).ok()??.interpreter
}

/// Is the linker that a program names this program's own? It may name anything, and only this
/// program's is started.
fn is_same(wanted: &str, own: &str) -> bool {
    let file = |linker: &str| Path::new(linker).canonicalize().ok();
    file(own).is_some_and(|own| file(wanted) == Some(own))
}

/// The dynamic linker's report.
#[derive(Debug, Default)]
struct Trace {
    /// Each library and its file; `None` if there is none.
    libraries: Vec<(String, Option<String>)>,
    /// What it objects to.
    objections: Vec<String>,
}

/// Asks the dynamic linker what it would load, as `ldd -r` does. No code of `file` runs.
fn trace(linker: &Path, file: &Path, variables: &Variables) -> Trace {
    let mut command = Command::new(linker);
    command.arg(file).stdin(Stdio::null());
    // With these set, the linker binds at once and reports every symbol that it does not find.
    for name in ["LD_TRACE_LOADED_OBJECTS", "LD_WARN", "LD_BIND_NOW"] {
        command.env(name, "1");
    }
    command.env_remove(PRELOAD).envs(variables.iter().map(|(name, value)| (name, value)));
    let Ok(output) = command.output() else { return Trace::default() };
    read_trace(&String::from_utf8_lossy(&output.stdout), &String::from_utf8_lossy(&output.stderr))
}

fn read_trace(out: &str, errors: &str) -> Trace {
    let mut trace = Trace::default();
    for line in out.lines().chain(errors.lines()).map(str::trim) {
        if line.is_empty() || line == "statically linked" {
            continue;
        }
        // `name => path (address)`, `name => not found`, or `path (address)`.
        let listed = line.split_once(" => ");
        match (listed, line.rsplit_once(" (0x")) {
            (Some((name, "not found")), _) => trace.libraries.push((name.to_owned(), None)),
            (Some((name, rest)), Some(_)) => {
                let path = rest.rsplit_once(" (0x").map(|(path, _)| path.to_owned());
                trace.libraries.push((name.to_owned(), path));
            }
            (None, Some((path, _))) => {
                trace.libraries.push((path.to_owned(), Some(path.to_owned())));
            }
            _ => trace.objections.push(line.to_owned()),
        }
    }
    trace
}

/// Would programs that are started without `remora run` find the library?
fn environment(variables: &Variables) -> Check {
    let has = |name: &str| {
        let ours = variables.iter().find(|(known, _)| *known == name)?.1.to_str()?;
        let ours = ours.split(':').next()?.to_owned();
        env::var(name).ok()?.split([':', ' ']).any(|part| part == ours).then_some(())
    };
    if has(LIBRARY_PATH).is_some() || has(PRELOAD).is_some() {
        return Check::ok("environment", "programs started in this shell run on Remora");
    }
    Check::note(
        "environment",
        "start programs by `remora run -- PROGRAM`, or in this shell after \
         `eval \"$(remora run --env)\"`",
    )
}

fn look_at_program(name: &OsString, variables: &Variables, checks: &mut Vec<Check>) {
    let shown = name.to_string_lossy();
    let program = match program::find(name) {
        Ok(program) => program,
        Err(why) => {
            let found = match why {
                NoProgram::NotFound => format!("there is no program `{shown}`"),
                NoProgram::NotExecutable => format!("`{shown}` may not be executed"),
            };
            return checks.push(Check::fail("program", found, "give its path, or a name in PATH"));
        }
    };
    let before = checks.len();
    for concern in program.concerns() {
        checks.push(match concern.reach {
            Reach::Never => Check::fail("program", concern.found, concern.advice),
            Reach::OnlyPreloaded | Reach::OnlyUnpreloaded => {
                Check::warn("program", concern.found, concern.advice)
            }
        });
    }
    if checks[before..].iter().all(|check| check.status != Status::Fail) {
        checks.push(loading(&program, variables));
    }
}

/// What the dynamic linker would do with the program under `remora run`.
fn loading(program: &Program, variables: &Variables) -> Check {
    let name = program.binary.display();
    let wanted = program.elf.as_ref().and_then(|elf| elf.interpreter.as_deref());
    let Some(linker) = linker().filter(|own| wanted.is_some_and(|wanted| is_same(wanted, own)))
    else {
        let why = wanted.map_or_else(
            || format!("{name} is not an ELF program"),
            |wanted| format!("{name} is loaded by {wanted}, which is not asked"),
        );
        return Check::note("program", format!("{why}, so its libraries were not checked"));
    };
    // Without the preload, which would make the linker list the library for every program.
    let variables: Variables =
        variables.iter().filter(|(name, _)| *name == LIBRARY_PATH).cloned().collect();
    let trace = trace(Path::new(&linker), &program.binary, &variables);
    let gone = trace.libraries.iter().filter(|(_, path)| path.is_none());
    let gone: BTreeSet<&str> = gone.map(|(name, _)| name.as_str()).collect();
    if !gone.is_empty() {
        let gone: Vec<&str> = gone.into_iter().collect();
        let found = format!("{name} needs libraries that are not installed: {}", gone.join(", "));
        return Check::fail("program", found, "install the packages that hold them");
    }
    // Only symbols of these libraries matter: others would be missing with a real libibverbs too.
    let ours = |line: &&String| {
        ["ibv_", "rdma_", "IBVERBS", "RDMACM", "libibverbs", "librdmacm", "mlx5", "efa"]
            .iter()
            .any(|word| line.contains(word))
    };
    let lacking: Vec<&String> = trace.objections.iter().filter(ours).collect();
    if let Some(first) = lacking.first() {
        let found = format!(
            "{name} needs symbols that Remora's library lacks ({}): {first}",
            lacking.len()
        );
        return Check::fail("program", found, "please report it, with the program's version");
    }
    let verbs = |name: &str| name.starts_with("libibverbs.so") || name.starts_with("librdmacm.so");
    let linked: Vec<&(String, Option<String>)> =
        trace.libraries.iter().filter(|(name, _)| verbs(name)).collect();
    let elsewhere = linked.iter().find(|(_, path)| {
        let path = path.as_deref().map(Path::new).and_then(|path| path.canonicalize().ok());
        path.is_none_or(|path| path.file_name() != Some(VERBS.as_ref()))
    });
    match (linked.is_empty(), elsewhere) {
        (true, _) => Check::note(
            "program",
            format!("{name} is not linked to libibverbs; it may load it later, by name"),
        ),
        (false, Some((library, path))) => Check::warn(
            "program",
            format!("{name} takes {library} from {}", path.as_deref().unwrap_or("nowhere")),
            "start it by `remora run` without --no-preload: the preload goes before that library",
        ),
        (false, None) => Check::ok("program", format!("{name} finds Remora's library")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_the_linker_is_parsed() {
        let trace = read_trace(
            "\tlinux-vdso.so.1 (0x00007ffd5c5f2000)\n\
             \tlibibverbs.so.1 => /x/libibverbs.so.1 (0x00007f1c)\n\
             \tlibgone.so.1 => not found\n",
            "undefined symbol: ibv_x, version IBVERBS_1.9\t(/x/prog)\n",
        );
        assert_eq!(trace.libraries.len(), 3);
        assert_eq!(trace.libraries[1].1.as_deref(), Some("/x/libibverbs.so.1"));
        assert_eq!(trace.libraries[2], ("libgone.so.1".into(), None));
        assert_eq!(trace.objections.len(), 1);
    }

    #[test]
    fn this_programs_linker_lists_its_libraries() {
        let linker = linker().unwrap();
        let trace = trace(Path::new(&linker), &env::current_exe().unwrap(), &Vec::new());
        assert!(trace.libraries.iter().any(|(name, _)| name == "libc.so.6"), "{trace:?}");
        assert!(trace.objections.is_empty(), "{trace:?}");
    }
}

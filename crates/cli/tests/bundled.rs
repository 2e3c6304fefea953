//! Programs that bring a renamed libibverbs along, as Python wheels do: the distribution's own
//! libraries under other names, in a folder that the program's RPATH names.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::Folder;
use support::verbs::{Running, described, free_port, installed, libraries, printed};

/// The libraries' names, of the distribution and in the bundle.
const RENAMED: [(&str, &str); 2] = [
    ("libibverbs.so.1", "libibverbs-1a2b3c4d.so.1.14.44.0"),
    ("librdmacm.so.1", "librdmacm-5e6f7a8b.so.1.3.44.0"),
];

/// A user id that no system has given to a user; a process needs no name for it.
const ORDINARY_USER: u32 = 65_534;

/// A folder with the command, its libraries, and programs with the libraries that they bring along.
struct Bundle {
    folder: Folder,
    /// The user and group that run the programs: an ordinary user's, if the test can change to one.
    user: (u32, u32),
}

impl Bundle {
    /// `None` if something is not installed.
    fn new() -> Option<Bundle> {
        let needed = [
            ("patchelf", "patchelf"),
            ("ibv_rc_pingpong", "ibverbs-utils"),
            ("rping", "rdmacm-utils"),
            ("cc", "gcc"),
        ];
        if !installed(&needed) {
            return None;
        }
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut bundle = Bundle { folder: Folder::new(), user: own };
        for folder in ["", "bin", "app", "app.libs", "home"] {
            let path = bundle.folder.path(folder);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        // Copies, because another user may not be able to reach the build folder.
        libraries();
        let built = Path::new(env!("CARGO_BIN_EXE_remora")).parent().unwrap();
        for name in ["remora", "libremora_verbs.so", "libremora_sysfs.so"] {
            fs::copy(built.join(name), bundle.folder.path("bin").join(name)).unwrap();
        }
        bundle.give_up_rights();
        for (name, renamed) in RENAMED {
            let library = bundle.library(renamed);
            fs::copy(distributed(name), &library).unwrap();
            patchelf(&["--set-soname", renamed], &library);
        }
        // librdmacm needs libibverbs, which the linker looks for in the same folder.
        bundle.rename(&bundle.library(RENAMED[1].1), "$ORIGIN");
        Some(bundle)
    }

    /// If the test is run by root, makes the programs run as an ordinary user, provided that this
    /// user can reach the folder.
    fn give_up_rights(&mut self) {
        let mut remora = Command::new(self.folder.path("bin/remora"));
        remora.arg("--version").uid(ORDINARY_USER).gid(ORDINARY_USER);
        if self.user.0 == 0 && remora.output().is_ok_and(|output| output.status.success()) {
            self.user = (ORDINARY_USER, ORDINARY_USER);
            chown(self.folder.path("home"), Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
        }
    }

    fn library(&self, name: &str) -> PathBuf {
        self.folder.path("app.libs").join(name)
    }

    /// Makes a file need the renamed libraries, and find them.
    fn rename(&self, file: &Path, rpath: &str) {
        for (name, renamed) in RENAMED {
            patchelf(&["--replace-needed", name, renamed], file);
        }
        patchelf(&["--force-rpath", "--set-rpath", rpath], file);
    }

    /// The distribution's program, with the renamed libraries.
    fn program(&self, name: &str) -> PathBuf {
        let path = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file());
        let program = self.folder.path("app").join(name);
        if !program.exists() {
            fs::copy(found.unwrap(), &program).unwrap();
            self.rename(&program, "$ORIGIN/../app.libs");
        }
        program
    }

    /// Runs a program on Remora.
    fn run(&self, program: &Path, args: &str) -> Command {
        let home = self.folder.path("home");
        let mut command = Command::new(self.folder.path("bin/remora"));
        command.arg("run").arg(program).args(args.split_whitespace()).current_dir(&home);
        for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "REMORA_ADDR", "REMORA_LIB_DIR"] {
            command.env_remove(name);
        }
        command.env("TMPDIR", &home).env("XDG_RUNTIME_DIR", &home).uid(self.user.0);
        command.gid(self.user.1);
        command
    }
}

/// The path of the distribution's library of this name, from the dynamic linker.
fn distributed(name: &str) -> PathBuf {
    let program = if name.starts_with("librdmacm") { "rping" } else { "ibv_rc_pingpong" };
    let script = format!("ldd \"$(command -v {program})\"");
    let mut sh = Command::new("sh");
    let said = printed(sh.args(["-c", &script]).env_remove("LD_LIBRARY_PATH"));
    let line = said.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
    line.split_whitespace().nth(2).unwrap().into()
}

/// Makes one change at a time, because patchelf 0.14 confuses several.
fn patchelf(args: &[&str], file: &Path) {
    let output = Command::new("patchelf").args(args).arg(file).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", described(&output));
}

#[test]
fn programs_with_a_renamed_libibverbs_talk() {
    let Some(bundle) = Bundle::new() else { return };
    // The programs do bring their own library: they do not ask for one under Remora's names.
    let program = bundle.program("ibv_rc_pingpong");
    let needs = printed(Command::new("ldd").arg(&program));
    assert!(needs.contains(RENAMED[0].1) && !needs.contains("libibverbs.so.1"), "{needs}");

    let port = free_port();
    let args = format!("-p {port} -n 200 -c");
    let mut server = Running::start(&mut bundle.run(&program, &args));
    server.listens_on_tcp(port);
    let said = printed(&mut bundle.run(&program, &format!("{args} 127.0.0.1")));
    assert!(said.contains("200 iters"), "{said}");
    assert!(server.succeeds().contains("200 iters"));
}

#[test]
fn programs_with_a_renamed_librdmacm_talk() {
    let Some(bundle) = Bundle::new() else { return };
    let program = bundle.program("rping");
    let port = free_port();
    let mut server = Running::start(&mut bundle.run(&program, &format!("-s -p {port} -C 9 -V")));
    server.listens_by_cm(port);
    let args = format!("-c -a 127.0.0.1 -p {port} -C 9 -V -v");
    let said = printed(&mut bundle.run(&program, &args));
    assert!(said.contains("ping data: rdma-ping-8"), "{said}");
    server.succeeds();
}

/// Loaded as an interpreter loads an extension: after the start, with its symbols kept to itself.
#[test]
fn a_renamed_libibverbs_of_a_library_that_is_loaded_later_is_replaced_too() {
    let Some(bundle) = Bundle::new() else { return };
    let app = bundle.folder.path("app");
    fs::write(app.join("extension.c"), EXTENSION).unwrap();
    fs::write(app.join("interpreter.c"), INTERPRETER).unwrap();
    let folder = bundle.folder.path("app.libs");
    let renamed = bundle.library(RENAMED[0].1);
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).args([app.join("extension.so"), app.join("extension.c")]);
    cc.arg(&renamed).arg(format!("-Wl,-rpath,{}", folder.display()));
    printed(&mut cc);
    let interpreter = app.join("interpreter");
    printed(Command::new("cc").arg("-o").args([&interpreter, &app.join("interpreter.c")]));

    let said = printed(&mut bundle.run(&interpreter, app.join("extension.so").to_str().unwrap()));
    assert_eq!(said, "remora0 opened\n");
}

const EXTENSION: &str = r#"
#include <stdio.h>
void **ibv_get_device_list(int *count);
const char *ibv_get_device_name(void *device);
void *ibv_open_device(void *device);
int run(void) {
    int count = 0;
    void **list = ibv_get_device_list(&count);
    if (!list || count != 1) return 1;
    void *context = ibv_open_device(list[0]);
    printf("%s %s\n", ibv_get_device_name(list[0]), context ? "opened" : "refused");
    return 0;
}
"#;

const INTERPRETER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    (void)argc;
    void *extension = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!extension) return fprintf(stderr, "%s\n", dlerror()), 2;
    int (*run)(void) = (int (*)(void))dlsym(extension, "run");
    return run ? run() : 3;
}
"#;

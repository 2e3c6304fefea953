//! A program in C that a bench measures: compiled against this machine's headers and libraries.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, ensure};

/// The program, compiled; its file is removed with this value.
#[derive(Debug)]
pub(super) struct CProgram {
    path: PathBuf,
}

impl CProgram {
    /// Compiles the program and links it with `libraries`, such as `-libverbs`. No two programs of
    /// a bench have the same `name`.
    pub(super) fn compile(name: &str, source: &str, libraries: &[&str]) -> Result<CProgram> {
        let path = env::temp_dir().join(format!("remora-{name}-{}", std::process::id()));
        let mut compiler = Command::new("cc")
            .args(["-O2", "-x", "c", "-"])
            .args(libraries)
            .arg("-o")
            .arg(&path)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start `cc`; install a C compiler (Debian, Ubuntu: apt install gcc)")?;
        let mut stdin = compiler.stdin.take().context("a compiler without standard input")?;
        // If the compiler ends early, its own words say why.
        stdin.write_all(source.as_bytes()).ok();
        drop(stdin);
        let out = compiler.wait_with_output().context("cannot wait for `cc`")?;
        let program = CProgram { path };
        ensure!(
            out.status.success(),
            "cannot compile a verbs program; install libibverbs-dev and librdmacm-dev if headers \
             are missing:\n{}",
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(program)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for CProgram {
    fn drop(&mut self) {
        // It is not there if it could not be compiled.
        fs::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_compiled_and_removed() {
        let program = CProgram::compile("test", "int main(void) { return 0; }", &[]).unwrap();
        let path = program.path().to_owned();
        assert!(Command::new(&path).status().unwrap().success());
        drop(program);
        assert!(!path.exists());
        let error = CProgram::compile("test-2", "no C", &[]).unwrap_err();
        assert!(error.to_string().contains("cannot compile"), "{error}");
    }
}

//! A program that calls the system as Xilinx's tools do, and what their scripts do with those.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::verbs::installed;
use super::{Folder, pattern};

/// The tools.
pub(crate) struct Xdma(PathBuf);

impl Xdma {
    /// Builds them; `None` if there is no compiler.
    pub(crate) fn build(folder: &Folder) -> Option<Xdma> {
        if !installed(&[("cc", "gcc")]) {
            return None;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/xdma_calls.c");
        let program = folder.path("xdma_calls");
        let mut compiler = Command::new("cc");
        let built = compiler.args(["-O1", "-Wall", "-Werror", "-o"]).args([&program, &source]);
        let built = built.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(Xdma(program))
    }

    fn call(&self, args: &[&str]) -> Output {
        Command::new(&self.0).args(args).output().unwrap()
    }

    /// Moves bytes `way` between a card's file and another one, `count` times.
    pub(crate) fn moves(&self, way: &str, card: &Path, (at, len, shift): Range, other: &Path) {
        let numbers = [at, len, shift, COUNT].map(|number| format!("{number:#x}"));
        let [at, len, shift, count] = numbers.each_ref().map(String::as_str);
        let (card, other) = (card.to_str().unwrap(), other.to_str().unwrap());
        let done = self.call(&[way, card, at, len, shift, count, other]);
        let why = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{way} {card}, {len} bytes at {at}: {why}");
    }

    /// A register, as it is mapped.
    fn register(&self, control: &Path, offset: u32) -> String {
        let done = self.call(&["register", control.to_str().unwrap(), &format!("{offset:#x}")]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// How many memory-mapped channels a card has in the direction whose registers begin here.
    fn channels(&self, card: &Path, first: u32) -> usize {
        let registers = (0..4).map(|n| self.register(&card.join("xdma0_control"), first + n * 256));
        registers.filter(|word| word.starts_with("1fc") && !word[4..].starts_with('8')).count()
    }
}

/// How often each move is made.
const COUNT: u64 = 2;
/// Where on the card, how many bytes, and how far the buffer is behind a page.
type Range = (u64, u64, u64);

/// Counts the channels of the card whose files are in `card`, and moves files of many sizes to it
/// and back by each: the memory-mapped part of `run_test.sh`, and its sweeps.
pub(crate) fn run_test(xdma: &Xdma, card: &Path, folder: &Folder, channels: usize) {
    assert_eq!(xdma.channels(card, 0), channels, "to the card");
    assert_eq!(xdma.channels(card, 0x1000), channels, "from the card");
    let back = folder.path("back");
    for len in [1, 64, 1024, 4096, 65_537, (4 << 20) + 3] {
        let data = folder.file("data", len);
        for (number, shift) in (0..channels as u64).zip([0, 3, 64, 4095]) {
            let range = (number * len as u64, len as u64, shift);
            xdma.moves("to", &card.join(format!("xdma0_h2c_{number}")), range, &data);
            xdma.moves("from", &card.join(format!("xdma0_c2h_{number}")), range, &back);
            let twice = pattern(len).repeat(COUNT as usize);
            assert!(fs::read(&back).unwrap() == twice, "channel {number}, {len} bytes");
        }
    }
}

/// Has fio do this to a file, where fio is there. (CI has it.)
pub(crate) fn fio(rw: &str, size: &str, more: &[&str], (file, folder): (&str, &Path)) {
    if !installed(&[("fio", "fio")]) {
        return;
    }
    let done = Command::new("fio")
        .args(["--name=card", &format!("--rw={rw}"), "--bs=16k", &format!("--size={size}")])
        .args([format!("--filename={file}"), format!("--aux-path={}", folder.display())])
        .args(more)
        .stdout(Stdio::null())
        .status();
    assert!(done.unwrap().success(), "{rw}");
}

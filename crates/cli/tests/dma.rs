//! `remora dma`: card memory as files, copies, and what is told of paths and channels.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::xdma::{self, Xdma};
use support::{Folder, Killed, command, fail, pattern, run, succeed};

/// `remora dma files` at work, until it is dropped.
struct Card {
    child: Killed,
    folder: PathBuf,
    told: Value,
}

impl Card {
    fn start(folder: &Folder, options: &[&str]) -> Card {
        let folder = folder.path("card");
        fs::create_dir_all(&folder).unwrap();
        let args = ["dma", "files", folder.to_str().unwrap(), "--json", "--near", "2M"];
        let mut files = command(args.iter().chain(options));
        let mut child = Killed(files.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Card { child, folder, told: serde_json::from_str(&line).unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn stop(mut self) {
        let interrupt = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        assert!(interrupt.unwrap().success());
        assert!(self.child.wait().unwrap().success());
        assert_eq!(fs::read_dir(&self.folder).unwrap().count(), 0, "its files are removed");
    }
}

/// Expects a failure whose reason has these words.
fn refused(args: &[&str], why: &str) {
    let said = fail(args);
    assert!(said.contains(why), "{said}");
}

fn json(args: &[&str]) -> Value {
    let output = run(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn channels_are_files_whose_offsets_are_card_addresses() {
    let folder = Folder::new();
    let card = Card::start(&folder, &["--far", "64M", "--channels", "2"]);
    let open = |name| File::options().read(true).write(true).open(card.path(name)).unwrap();
    let data = pattern(300_001);
    open("xdma0_h2c_0").write_all_at(&data, 0x1003).unwrap();
    let mut back = vec![0; data.len()];
    open("xdma0_c2h_1").read_exact_at(&mut back, 0x1003).unwrap();
    assert!(back == data);
    // The near memory lies behind the far, and nothing lies behind that.
    assert_eq!(card.told["near_address"], 64 << 20);
    open("xdma0_h2c_1").write_all_at(b"near", (66 << 20) - 4).unwrap();
    assert!(open("xdma0_h2c_1").write_all_at(b"beyond", (66 << 20) - 4).is_err());
    let cut = File::create(card.path("xdma0_h2c_0"));
    assert!(cut.is_err(), "nobody can cut the card's memory");
    // The registers say how many channels there are.
    let mut registers = vec![0; 0x2000];
    open("xdma0_control").read_exact_at(&mut registers, 0).unwrap();
    let channels = |start: usize| {
        let is_channel = |at: &usize| registers[start + at * 0x100 + 3] == 0x1f;
        (0..4).filter(is_channel).count()
    };
    assert_eq!((channels(0), channels(0x1000)), (2, 2));
    // A second card does not take the first one's names.
    refused(&["dma", "files", card.folder.to_str().unwrap()], "is there already");
    card.stop();
}

#[test]
fn what_goes_into_a_streaming_channel_comes_out() {
    let folder = Folder::new();
    let card = Card::start(&folder, &["--far", "2M", "--streaming"]);
    let open = |name| File::options().read(true).write(true).open(card.path(name)).unwrap();
    let data = pattern(4096);
    // The bytes stay when their writer has gone.
    open("xdma0_h2c_3").write_all(&data).unwrap();
    let mut back = vec![0; data.len()];
    open("xdma0_c2h_3").read_exact(&mut back).unwrap();
    assert!(back == data);
    card.stop();
}

#[test]
fn bytes_are_copied_to_a_card_and_back_by_each_path() {
    let folder = Folder::new();
    let card = Card::start(&folder, &["--far", "64M"]);
    let dir = card.folder.to_str().unwrap();
    let data = folder.file("data", 3_000_001);
    let (data, back) = (data.to_str().unwrap(), folder.path("back"));
    for (number, path) in ["mapping", "memfd", "pipe", "udp"].iter().enumerate() {
        let at = format!("card:{:#x}", number * 4_000_003);
        let to = ["dma", "copy", data, &at, "--card", dir, "--path", path, "--json"];
        let told = json(&to);
        assert_eq!((&told["bytes"], &told["to_card"]), (&3_000_001.into(), &(*path).into()));
        let back_to = back.to_str().unwrap();
        let args = ["dma", "copy", &at, back_to, "--len", "3000001", "--card", dir, "--path", path];
        succeed(args);
        assert!(fs::read(&back).unwrap() == pattern(3_000_001), "{path}");
    }
    succeed(["dma", "copy", "card:0", "card:0x2000001", "--len", "2M", "--card", dir]);
    let out = run(["dma", "copy", "card:0x2000001", "-", "--len", "2M", "--card", dir]);
    assert!(out.stdout == pattern(3_000_001)[..2 << 20]);

    refused(&["dma", "copy", "card:0", back.to_str().unwrap(), "--card", dir], "--len");
    assert!(fs::read(&back).unwrap() == pattern(3_000_001), "what is refused changes no file");
    refused(&["dma", "copy", data, "card:0"], "no card is named");
    refused(&["dma", "copy", data, "card:0x41ffffe", "--card", dir], "not within");
    refused(
        &["dma", "copy", data, "card:0", "--card", dir, "--path", "engine"],
        "its own card only",
    );
    card.stop();
}

#[test]
fn files_are_copied_through_a_card_of_ones_own() {
    let folder = Folder::new();
    let data = folder.file("data", 2_500_000);
    let back = folder.path("back");
    for path in ["engine", "mapping"] {
        let args = ["dma", "copy", data.to_str().unwrap(), back.to_str().unwrap(), "--path", path];
        succeed(args);
        assert!(fs::read(&back).unwrap() == pattern(2_500_000), "{path}");
    }
    let args = ["dma", "copy", data.to_str().unwrap(), back.to_str().unwrap(), "--len", "3M"];
    refused(&args, "has only 2500000 bytes");
}

#[test]
fn a_copy_that_cannot_work_changes_no_file() {
    let folder = Folder::new();
    let card = Card::start(&folder, &["--far", "2M"]);
    let dir = card.folder.to_str().unwrap();
    let (data, old) = (folder.file("data", 1000), folder.file("old", 77));
    let [from, to] = [&data, &old].map(|path| path.to_str().unwrap());
    succeed(["dma", "copy", from, from]);
    assert!(fs::read(&data).unwrap() == pattern(1000), "a file is copied to itself");
    refused(&["dma", "copy", from, to, "--len", "1001"], "has only 1000 bytes");
    refused(&["dma", "copy", "card:100G", to, "--len", "4K", "--card", dir], "not within");
    assert!(fs::read(&old).unwrap() == pattern(77));
    let new = folder.path("new");
    refused(&["dma", "copy", from, new.to_str().unwrap(), "--len", "1001"], "has only");
    assert_eq!(folder.names(), ["card", "data", "old"], "no part is left");
    card.stop();
}

#[test]
fn ranges_of_a_card_that_overlap_are_copied_whole() {
    let folder = Folder::new();
    let card = Card::start(&folder, &["--far", "8M"]);
    let dir = card.folder.to_str().unwrap();
    let data = folder.file("data", 3 << 20);
    let copy = |from: &str, to: &str| {
        succeed(["dma", "copy", from, to, "--len", "3M", "--card", dir]);
    };
    for (from, to) in [(0, 512 << 10), (0, 100), (512 << 10, 0), (100, 0), (0, 2 << 20)] {
        let [at, moved] = [from, to].map(|address: u64| format!("card:{address}"));
        copy(data.to_str().unwrap(), &at);
        copy(&at, &moved);
        let back = run(["dma", "copy", &moved, "-", "--len", "3M", "--card", dir]);
        assert!(back.stdout == pattern(3 << 20), "from {from} to {to}");
    }
    card.stop();
}

#[test]
fn what_a_killed_card_has_left_is_replaced() {
    let folder = Folder::new();
    for options in [&["--far", "2M", "--streaming"][..], &["--far", "2M"]] {
        let killed = Card::start(&folder, options);
        drop(killed);
        assert!(folder.path("card/xdma0_h2c_0").symlink_metadata().is_ok());
        let next = Card::start(&folder, options);
        // A pipe from which somebody reads is another card's.
        refused(&[&["dma", "files", next.folder.to_str().unwrap()], options].concat(), "is there");
        next.stop();
    }
}

#[test]
fn paths_and_channels_are_told() {
    let paths = json(&["dma", "paths", "--json"]);
    let paths = paths.as_array().unwrap();
    assert_eq!(paths.len(), 7);
    assert_eq!(paths.iter().filter(|path| path["chosen"] == true).count(), 1);
    for path in paths {
        assert_ne!(path["impossible"].is_null(), path["costs"].is_null(), "{path}");
    }
    let forced = run(["dma", "paths", "--path", "udp"]);
    let text = String::from_utf8(forced.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("chosen")).unwrap();
    assert!(line.contains("udp"), "{text}");
    let unknown = command(["dma", "paths"]).env("REMORA_DMA_PATH", "pcie").output().unwrap();
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("process_vm"));

    let channels = json(&["dma", "channels", "--json"]);
    assert_eq!(channels["channels"].as_array().unwrap().len(), 8);
    assert_eq!(channels["capabilities"]["fence"], true);
}

/// The instruments of *In-Network Memory Access* §6, where they are installed.
#[test]
fn dd_and_fio_reach_the_card() {
    let folder = Folder::new();
    let card = Card::start(&folder, &["--far", "128M"]);
    let data = folder.file("data", 1 << 20);
    let (h2c, c2h) = (card.path("xdma0_h2c_0"), card.path("xdma0_c2h_0"));
    let back = folder.path("back");
    let dd = |args: &[String]| {
        let done = Command::new("dd").args(args).stderr(Stdio::null()).status().unwrap();
        assert!(done.success(), "{args:?}");
    };
    let (data, copy) = (data.display(), back.display());
    dd(&[
        format!("if={data}"),
        format!("of={h2c}"),
        "bs=64K".into(),
        "seek=3".into(),
        "conv=notrunc".into(),
    ]);
    dd(&[
        format!("if={c2h}"),
        format!("of={copy}"),
        "bs=64K".into(),
        "skip=3".into(),
        "count=16".into(),
    ]);
    assert!(fs::read(&back).unwrap() == pattern(1 << 20));

    xdma::fio("randwrite", "32M", &["--verify=crc32c"], (&h2c, &card.folder));
    drop(card);
}

#[test]
fn xilinxs_tools_reach_the_card() {
    let folder = Folder::new();
    let Some(tools) = Xdma::build(&folder) else { return };
    let card = Card::start(&folder, &["--far", "64M", "--channels", "3"]);
    xdma::run_test(&tools, &card.folder, &folder, 3);
    card.stop();
}

//! `remora dma mount`: the files of XDMA's driver, with the engine behind them.
#![cfg(feature = "fuse")]

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use support::mount::{Mounted, can_mount};
use support::nic::Daemon;
use support::xdma::{self, Xdma};
use support::{Folder, pattern, until};

#[test]
fn a_file_is_a_channel_of_the_engine() {
    if !can_mount() {
        return;
    }
    let daemon = Daemon::start();
    let socket = daemon.folder.path("nic.sock");
    let files = Folder::new();
    let mounted = Mounted::start(&files, &["--channels", "2"], Some(socket));
    assert_eq!(mounted.told["daemon"], true);
    assert_eq!(mounted.told["files"].as_array().unwrap().len(), 5);
    let mut names: Vec<_> = fs::read_dir(&mounted.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names[..3], ["xdma0_c2h_0", "xdma0_c2h_1", "xdma0_control"]);

    let data = pattern(5_300_001);
    mounted.open("xdma0_h2c_0").write_all_at(&data, 0x1003).unwrap();
    let mut back = vec![0; data.len()];
    mounted.open("xdma0_c2h_1").read_exact_at(&mut back, 0x1003).unwrap();
    assert!(back == data);
    // It is the daemon's card.
    let out = daemon.run(&["dma", "copy", "card:0x1003", "-", "--len", "5300001"]);
    assert!(out.stdout == data);
    let told = daemon.json(&["dma", "channels", "--json"]);
    assert_eq!(told["open"]["channels"].as_array().unwrap().len(), 4);

    // The daemon goes: readers and writers are told, and nobody hangs.
    let channel = mounted.open("xdma0_h2c_0");
    drop(daemon);
    until("the file says that the card has gone", || channel.write_at(b"x", 0).is_err());
    drop(channel);
    mounted.stop();
}

#[test]
fn files_end_where_the_card_does_and_have_one_direction() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let mounted = Mounted::start(&folder, &["--far", "64M", "--channels", "2"], None);
    let (to, from) = (mounted.open("xdma0_h2c_0"), mounted.open("xdma0_c2h_0"));
    assert_eq!(to.read_at(&mut [0; 8], 0).unwrap_err().raw_os_error(), Some(22));
    assert_eq!(from.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(22));
    let end = mounted.told["near_address"].as_u64().unwrap()
        + mounted.told["near_bytes"].as_u64().unwrap();
    assert_eq!(to.write_at(&[0; 8], end - 4).unwrap_err().raw_os_error(), Some(28));
    assert_eq!(from.read_at(&mut [0; 8], end - 4).unwrap(), 4);
    assert_eq!(from.read_at(&mut [0; 8], end).unwrap(), 0);
    assert!(File::create(mounted.dir.join("other")).is_err());
    // Cut, as by a shell, it stays as long as it was.
    File::create(mounted.dir.join("xdma0_h2c_1")).unwrap();
    assert_eq!(from.metadata().unwrap().len(), end);
    let control = mounted.open("xdma0_control");
    let mut registers = vec![0; 0x1200];
    control.read_exact_at(&mut registers, 0).unwrap();
    assert_eq!(registers[0x1100..0x1104], 0x1fc1_0100_u32.to_le_bytes());
    assert!(control.write_at(b"x", 0).is_err());
    drop((to, from, control));
    mounted.stop();
}

#[test]
fn packets_pass_through_streaming_files() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let mounted = Mounted::start(&folder, &["--streaming", "--far", "2M"], None);
    assert_eq!(mounted.told["daemon"], false);
    let (mut to, mut from) = (mounted.open("xdma0_h2c_3"), mounted.open("xdma0_c2h_3"));
    let mut buffer = vec![0; 1 << 16];
    to.write_all(&pattern(3000)).unwrap();
    to.write_all(&pattern(5)).unwrap();
    assert_eq!(from.read(&mut buffer).unwrap(), 3000, "a packet is what was written at a time");
    assert!(buffer[..3000] == pattern(3000));
    assert_eq!(from.read(&mut buffer[..2]).unwrap(), 2);
    assert_eq!(from.read(&mut buffer).unwrap(), 3, "the rest of the packet");
    // Wherever in its page a buffer begins.
    let mut long = vec![0; 1 << 20];
    let data = pattern(long.len() + 4096);
    let packet = long.len() - 4096;
    let aligned = data.as_ptr().align_offset(4096);
    for start in [aligned, (aligned + 1) % 4096, (aligned + 2048) % 4096] {
        to.write_all(&data[start..][..packet]).unwrap();
        assert_eq!(from.read(&mut long).unwrap(), packet, "from {start}");
        assert!(long[..packet] == data[start..][..packet]);
        to.write_all(&data[start..][..long.len()]).unwrap();
        assert_eq!(from.read(&mut long).unwrap(), packet + 1, "from {start}");
        assert_eq!(from.read(&mut long).unwrap(), 4095);
    }
    // A reader that comes first waits, and others' files work meanwhile.
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 100];
        let count = from.read(&mut bytes).unwrap();
        bytes[..count].to_vec()
    });
    let (mut other_to, mut other_from) = (mounted.open("xdma0_h2c_1"), mounted.open("xdma0_c2h_1"));
    other_to.write_all(b"other").unwrap();
    assert_eq!(other_from.read(&mut buffer).unwrap(), 5);
    to.write_all(b"late").unwrap();
    assert_eq!(reader.join().unwrap(), b"late");
    drop((to, other_to, other_from));
    mounted.stop();
}

/// The instruments of *In-Network Memory Access* §6, as they are called there.
#[test]
fn dd_and_fio_move_bytes_by_the_engine() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let mounted = Mounted::start(&folder, &["--far", "64M"], None);
    let data = folder.file("data", 1 << 20);
    let (h2c, c2h) = (mounted.path("xdma0_h2c_0"), mounted.path("xdma0_c2h_0"));
    let back = folder.path("back");
    let dd = |args: &[String]| {
        let done = Command::new("dd").args(args).stderr(Stdio::null()).status().unwrap();
        assert!(done.success(), "{args:?}");
    };
    // Without conv=notrunc, as with a device.
    let (of, skip) = (format!("of={h2c}"), "skip=3".to_owned());
    dd(&[format!("if={}", data.display()), of, "bs=64K".into(), "seek=3".into()]);
    let (input, output) = (format!("if={c2h}"), format!("of={}", back.display()));
    dd(&[input, output, "bs=64K".into(), skip, "count=16".into()]);
    assert!(fs::read(&back).unwrap() == pattern(1 << 20));

    for (file, rw) in [(&h2c, "randwrite"), (&c2h, "randread")] {
        xdma::fio(rw, "16M", &[], (file, &folder.path("")));
    }
    mounted.stop();
}

#[test]
fn xilinxs_tools_move_bytes_by_the_engine() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let Some(tools) = Xdma::build(&folder) else { return };
    let mounted = Mounted::start(&folder, &["--far", "64M", "--channels", "2"], None);
    xdma::run_test(&tools, &mounted.dir, &folder, 2);
    let (file, back) = (mounted.dir.join("xdma0_c2h_1"), folder.path("back"));
    tools.moves("flush", &file, (0, 1024, 0), &back);
    mounted.stop();
}

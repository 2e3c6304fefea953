//! Captures: their blocks, their names, and disks that fail.

use std::process::Command;

use super::*;

/// RC SEND Only to queue pair 17 with PSN 5, "hello" and three bytes of pad, some ICRC.
const DATAGRAM: [u8; 24] = *b"\x04\x70\xff\xff\x00\x00\x00\x11\x00\x00\x00\x05hello\0\0\0ICRC";

fn datagram(src: &str, dst: &str) -> Datagram<'static> {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    Datagram { src, src_port: 50_000, dst, ip_id: Some(7), tos: 0x69, bytes: &DATAGRAM }
}

#[test]
fn blocks_say_their_length_before_and_behind() {
    let mut bytes = Vec::new();
    let mut capture = Capture::new(&mut bytes, "remora0").unwrap();
    capture.received(1, &datagram("10.0.0.1", "10.0.0.2"), 4791).unwrap();
    let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
    let mut at = 0;
    let mut kinds = Vec::new();
    while at < bytes.len() {
        let len = word(at + 4) as usize;
        assert_eq!(len % 4, 0);
        assert_eq!(word(at + len - 4) as usize, len);
        kinds.push(word(at));
        at += len;
    }
    assert_eq!(kinds, [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET]);
}

#[test]
fn tshark_reads_it() {
    if !crate::skips::is_there("tshark") {
        return crate::skips::lacks("tshark is not installed");
    }
    let path = std::env::temp_dir().join(format!("remora-{}.pcapng", std::process::id()));
    let mut capture = Capture::create(&path, "remora0").unwrap();
    let at = 1_700_000_000_123_456_789;
    capture.received(at, &datagram("10.0.0.1", "10.0.0.2"), 4791).unwrap();
    capture.received(at + 1, &datagram("fd00::1", "fd00::2"), 4791).unwrap();
    capture.flush().unwrap();
    let mut tshark = Command::new("tshark");
    tshark.args(["-o", "udp.check_checksum:TRUE", "-T", "fields", "-E", "separator=,", "-r"]);
    tshark.arg(&path);
    for field in [
        "frame.time_epoch",
        "frame.interface_name",
        "frame.packet_flags_direction",
        "ip.src",
        "ipv6.dst",
        "ip.dsfield",
        "udp.checksum.status",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
    ] {
        tshark.args(["-e", field]);
    }
    let out = tshark.output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // Checksum status 3: not there; 1: good.
    let expected = [
        "1700000000.123456789,remora0,0x00000001,10.0.0.1,,0x69,3,0x000011,5",
        "1700000000.123456790,remora0,0x00000001,,fd00::2,,1,0x000011,5",
    ];
    assert_eq!(lines, expected, "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn two_cards_do_not_write_to_one_file() {
    let folder = std::env::temp_dir().join(format!("remora-captures-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("here.pcapng");
    std::fs::write(&path, vec![b'x'; 4096]).unwrap();
    let first = Capture::create(&path, "first").unwrap();
    let refused = Capture::create(&path, "second").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    let second = Capture::create_beside(&path, "second").unwrap();
    let third = Capture::create_beside(&path, "third").unwrap();
    drop((first, third));
    let again = Capture::create_beside(&path, "again").unwrap();
    drop((second, again));
    let mut names: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["here-2.pcapng", "here-3.pcapng", "here.pcapng"]);
    let whole = std::fs::read(&path).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(whole.len() < 4096 && !whole.contains(&b'x'), "what was there is gone");
}

#[test]
fn a_number_stands_before_the_extension() {
    for (name, second) in [
        ("a/here.pcapng", "a/here-2.pcapng"),
        ("here.123.pcapng", "here.123-2.pcapng"),
        ("here", "here-2"),
        (".here", ".here-2"),
    ] {
        assert_eq!(numbered(Path::new(name), 2), Path::new(second));
        assert_eq!(numbered(Path::new(name), 1), Path::new(name));
    }
}

/// A full disk: the capture ends at the first error, and what it lacks is counted.
#[test]
fn a_file_that_cannot_be_written_ends_the_capture() {
    let capture = Capture::create("/dev/full", "remora0").unwrap();
    let mut recorder = Recorder::new(Some(capture));
    let one = datagram("10.0.0.1", "10.0.0.2");
    let mut before = 0;
    let mut records = |missed_each: u64| {
        for _ in 0..1000 {
            recorder.received(std::iter::once(one), 4791);
        }
        let missed = recorder.missed() - before;
        before = recorder.missed();
        assert!(missed >= missed_each, "{missed}");
        missed
    };
    assert!(records(1) < 1000, "the first packets were buffered");
    assert_eq!(records(1000), 1000);
    let mut small = Recorder::new(Some(Capture::create("/dev/full", "remora0").unwrap()));
    small.flush();
    small.received(std::iter::once(one), 4791);
    assert_eq!(small.missed(), 1);
    assert_eq!(Recorder::new(None).missed(), 0);
}

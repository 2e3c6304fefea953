//! Walks over all keys: `lru_crawler metadump`, `lru_crawler mgdump`, `stats cachedump`; and what
//! else concerns memcached's way to look after its memory.
//!
//! A walk is of any length. It takes a step at a time, and other connections have their turns in
//! between: see [`Taken::Again`]. A walk may show a key twice while the table grows.

use crate::front::keyspace::Found;
use crate::front::memcached::base64;
use crate::front::memcached::chunk::BAD_LINE;
use crate::front::memcached::conversation::{Call, Taken, Walk};
use crate::front::memcached::meta::{is_read, used_s};
use crate::front::memcached::numbers::{signed, unsigned_32};
use crate::slab::class;
use crate::stats::Op;

/// Keys that a step of a walk looks at.
const STEP: usize = 1024;
/// The longest answer to `stats cachedump`, in bytes.
const CACHEDUMP_BYTES: u64 = 2 << 20;
/// The largest limit of memory that is taken for one in MiB.
const MEMORY_MAX: u32 = 1_000_000_000;

/// An item that a walk has come to.
struct Item<'a> {
    key: &'a [u8],
    found: &'a Found,
    /// The number of its block's size, from 1 on; 0 if it has pages of its own.
    class: usize,
    bytes: u64,
}

/// `lru_crawler what ...`.
pub(super) fn crawler<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]> + Clone,
    len: usize,
) -> Taken {
    let (what, argument) = (rest.next().unwrap_or_default(), rest.next());
    let (has_argument, is_whole) = (argument.is_some(), rest.next().is_none());
    let argument = argument.unwrap_or_default();
    let show = match what {
        b"metadump" if has_argument && is_whole => show_meta,
        b"mgdump" if has_argument && is_whole => show_get,
        _ => {
            call.line(crawler_answer(what, argument, has_argument, is_whole));
            return Taken::Request(len, Op::Other);
        }
    };
    let Some(wanted) = classes_of(argument) else {
        call.line(b"BADCLASS invalid class id");
        return Taken::Request(len, Op::Other);
    };
    if !step(call, &mut |call, item| {
        if wanted.is_empty() || wanted.contains(&item.class) {
            show(call, item);
        }
        true
    }) {
        return Taken::Again;
    }
    call.line(if what == b"mgdump" { b"EN" } else { b"END" });
    Taken::Request(len, Op::Scan)
}

/// The store's sweep is always under way: a client may adjust it, and that changes nothing.
fn crawler_answer(
    what: &[u8],
    argument: &[u8],
    has_argument: bool,
    is_whole: bool,
) -> &'static [u8] {
    match (what, has_argument, is_whole) {
        (b"enable" | b"disable", false, true) => b"OK",
        (b"crawl", true, true) if classes_of(argument).is_some() => b"OK",
        (b"crawl", true, true) => b"BADCLASS invalid class id",
        (b"sleep" | b"tocrawl", true, true) => match unsigned_32(argument) {
            None => BAD_LINE,
            Some(1_000_001..) if what == b"sleep" => {
                b"CLIENT_ERROR sleep must be one second or less"
            }
            Some(_) => b"OK",
        },
        _ => b"ERROR",
    }
}

/// `stats cachedump class limit`: some items whose blocks have one size.
pub(super) fn cachedump<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
    len: usize,
) -> Taken {
    let done = Taken::Request(len, Op::Scan);
    let (Some(number), Some(limit)) = (rest.next(), rest.next()) else {
        call.line(b"CLIENT_ERROR bad command line");
        return done;
    };
    let (Some(number), Some(limit)) = (unsigned_32(number), unsigned_32(limit)) else {
        call.line(BAD_LINE);
        return done;
    };
    if number as usize > class::classes().len() {
        call.line(b"CLIENT_ERROR Illegal slab id");
        return done;
    }
    let most = if limit == 0 { u64::MAX } else { limit.into() };
    if !step(call, &mut |call, item| {
        if item.class == number as usize && is_text(item.key) {
            let ends_s = item.found.expires_ms.map_or(0, |at| at / 1000);
            let begun = call.out.len();
            call.out.extend_from_slice(b"ITEM ");
            call.out.extend_from_slice(item.key);
            call.line(format!(" [{} b; {ends_s} s]", item.bytes).as_bytes());
            let walk = &mut call.state.walk;
            walk.items += 1;
            walk.bytes += (call.out.len() - begun) as u64;
        }
        let walk = &call.state.walk;
        walk.items < most && walk.bytes < CACHEDUMP_BYTES
    }) {
        return Taken::Again;
    }
    call.line(b"END");
    done
}

/// Takes a step of the connection's walk. Returns whether it is over: at the end of the keys, or
/// since `show` has said so by false.
fn step(call: &mut Call<'_>, show: &mut dyn FnMut(&mut Call<'_>, &Item<'_>) -> bool) -> bool {
    let (keyspace, now) = (call.turn.server.keyspace.clone(), call.turn.now);
    let (mut items, classes) = (Vec::new(), class::classes());
    call.state.walk.cursor =
        keyspace.scan(call.ts, call.state.walk.cursor, STEP, now, &mut |key, found| {
            items.push((key.to_vec(), *found));
            true
        });
    let mut goes_on = call.state.walk.cursor != 0;
    for (key, found) in &items {
        // It may be gone by now.
        let Some(bytes) = keyspace.bytes_of(call.ts, key, now) else { continue };
        let class = class::class_for(&classes, bytes).map_or(0, |index| index + 1);
        if !show(call, &Item { key, found, class, bytes }) {
            goes_on = false;
            break;
        }
    }
    if !goes_on {
        call.state.walk = Walk::default();
    }
    !goes_on
}

/// The numbers of sizes of blocks that a client names, separated by commas; none for all of them.
fn classes_of(text: &[u8]) -> Option<Vec<usize>> {
    if matches!(text, b"all" | b"hash") {
        return Some(Vec::new());
    }
    let most = class::classes().len();
    let number = |word| unsigned_32(word).map(|number| number as usize);
    let is_class = |number: &usize| (1..=most).contains(number);
    text.split(|byte| *byte == b',').map(|word| number(word).filter(is_class)).collect()
}

/// Whether a key can stand in a line of text.
fn is_text(key: &[u8]) -> bool {
    !key.is_empty() && key.iter().all(|byte| *byte > b' ' && *byte != 0x7F)
}

fn show_meta(call: &mut Call<'_>, item: &Item<'_>) {
    call.out.extend_from_slice(b"key=");
    for byte in item.key {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                call.out.push(*byte);
            }
            _ => call.out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    let Item { found, class, bytes, .. } = item;
    let exp = found.expires_ms.map_or(-1, |at| (at / 1000) as i64);
    let (la, cas) = (used_s(call, found), found.version);
    let fetch = if is_read(found) { "yes" } else { "no" };
    // Lines of such a dump end as memcached ends them.
    let line = format!(" exp={exp} la={la} cas={cas} fetch={fetch} cls={class} size={bytes}\n");
    call.out.extend_from_slice(line.as_bytes());
}

fn show_get(call: &mut Call<'_>, item: &Item<'_>) {
    call.out.extend_from_slice(b"mg ");
    if is_text(item.key) {
        call.out.extend_from_slice(item.key);
        return call.line(b"");
    }
    base64::encode(item.key, call.out);
    call.line(b" b");
}

/// `slabs reassign` and `slabs automove`: memory goes by itself to the sizes that need it.
pub(super) fn slabs<'a>(call: &mut Call<'_>, rest: impl Iterator<Item = &'a [u8]>) {
    let words: Vec<&[u8]> = rest.collect();
    let answer: &[u8] = match words[..] {
        [b"reassign", from, to] => match (signed(from), signed(to)) {
            (Some(_), Some(_)) => b"CLIENT_ERROR slab reassignment disabled",
            _ => BAD_LINE,
        },
        [b"automove", b"ratio", ratio, ..] => match std::str::from_utf8(ratio).map(str::parse) {
            Ok(Ok(ratio)) if f64::is_finite(ratio) => b"OK",
            _ => b"ERROR",
        },
        [b"automove", level, ..] => match unsigned_32(level) {
            None => BAD_LINE,
            Some(0..=2) => b"OK",
            Some(_) => b"ERROR",
        },
        _ => b"ERROR",
    };
    let is_silent =
        words.first() == Some(&&b"automove"[..]) && words.last() == Some(&&b"noreply"[..]);
    if !is_silent {
        call.line(answer);
    }
}

/// `cache_memlimit MiB`: the limit is that of the store, and given when it starts.
pub(super) fn memory_limit<'a>(call: &mut Call<'_>, rest: impl Iterator<Item = &'a [u8]>) {
    let words: Vec<&[u8]> = rest.collect();
    let (mib, is_silent) = match words[..] {
        [mib] => (mib, false),
        [mib, last] => (mib, last == b"noreply"),
        _ => return call.line(b"ERROR"),
    };
    let limit = call.turn.server.keyspace.bytes().1;
    let answer: &[u8] = match unsigned_32(mib) {
        None => b"ERROR",
        Some(0..8) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        Some(mib) if mib > MEMORY_MAX => {
            b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes"
        }
        Some(mib) if u64::from(mib) << 20 == limit => b"OK",
        Some(_) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
    };
    if !is_silent {
        call.line(answer);
    }
}

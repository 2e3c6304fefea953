//! Strings: reading and writing whole values and parts of them.

use crate::front::keyspace::{Edit, Expiry, Seen};
use crate::front::redis::command::{Call, Done, SYNTAX, TOO_LONG, Wrong};
use crate::front::redis::commands::options::{
    End, EndOptions, ValueTest, agreed, digest_of, invalid_expire, once, time,
};
use crate::item::VALUE_MAX;

/// `GET key`.
pub(crate) fn get(call: &mut Call<'_>) -> Done {
    let (ts, key, now) = (call.ts()?, call.at(1), call.turn.now);
    let keyspace = &call.turn.server.keyspace;
    let found = call.reply.bulk_by(|out| keyspace.get(ts, key, now, out));
    if found.is_none() {
        call.reply.null();
    }
    call.count(found.is_some());
    Ok(())
}

/// `MGET key …`.
pub(crate) fn mget(call: &mut Call<'_>) -> Done {
    let (ts, now) = (call.ts()?, call.turn.now);
    call.reply.array(call.len() - 1);
    for key in call.arguments.from(1) {
        let keyspace = &call.turn.server.keyspace;
        let found = call.reply.bulk_by(|out| keyspace.get(ts, key, now, out));
        if found.is_none() {
            call.reply.null();
        }
        call.count(found.is_some());
        if call.reply.is_full() {
            break;
        }
    }
    Ok(())
}

/// The options of `SET`.
#[derive(Default)]
struct SetOptions<'a> {
    must_exist: Option<bool>,
    condition: Option<ValueTest<'a>>,
    end: Option<End>,
    wants_old: bool,
}

impl<'a> SetOptions<'a> {
    fn read(call: &Call<'a>) -> Result<SetOptions<'a>, Wrong> {
        let (mut options, mut ends) = (SetOptions::default(), EndOptions::default());
        let mut index = 3;
        while index < call.len() {
            if call.is(index, "nx") {
                agreed(&mut options.must_exist, false)?;
            } else if call.is(index, "xx") {
                agreed(&mut options.must_exist, true)?;
            } else if call.is(index, "get") {
                options.wants_old = true;
            } else if let Some(condition) = ValueTest::read(call, &mut index)? {
                once(&mut options.condition, condition)?;
            } else if !ends.read(call, &mut index, ("keepttl", End::Keep))? {
                return Err(SYNTAX);
            }
            index += 1;
        }
        if options.must_exist.is_some() && options.condition.is_some() {
            return Err(SYNTAX);
        }
        options.end = ends.end(call)?;
        Ok(options)
    }

    fn allow(&self, seen: Option<&Seen<'_>>) -> bool {
        self.must_exist.is_none_or(|must| must == seen.is_some())
            && self.condition.is_none_or(|condition| condition.holds(seen))
    }
}

/// `SET key value [NX | XX | IFEQ … | IFNE … | IFDEQ … | IFDNE …] [GET]
/// [EX … | PX … | EXAT … | PXAT … | KEEPTTL]`.
pub(crate) fn set(call: &mut Call<'_>) -> Done {
    if call.len() == 3 {
        let (key, value) = (call.at(1), call.at(2));
        call.change(key, |_, _| Edit::Put { value, flags: 0, expiry: Expiry::Default })?;
        call.turn.counts.stored.add(1);
        call.reply.ok();
        return Ok(());
    }
    let options = SetOptions::read(call)?;
    set_with(call, &options)
}

fn set_with(call: &mut Call<'_>, options: &SetOptions<'_>) -> Done {
    let (key, value) = (call.at(1), call.at(2));
    let mut old = std::mem::take(&mut call.turn.scratch);
    old.clear();
    let mut had = false;
    let changed = call.change(key, |seen, _| {
        old.clear();
        had = seen.is_some();
        if options.wants_old
            && let Some(seen) = &seen
        {
            old.extend_from_slice(seen.value());
        }
        if !options.allow(seen.as_ref()) {
            return Edit::Keep;
        }
        let expiry = match options.end {
            Some(End::At(at)) => Expiry::At(at),
            Some(End::Keep) => kept(seen),
            _ => Expiry::Default,
        };
        Edit::Put { value, flags: 0, expiry }
    });
    if let Ok(changed) = changed {
        call.turn.counts.stored.add(changed.into());
        match (options.wants_old, had, changed) {
            (true, true, _) => call.reply.bulk(&old),
            (false, _, true) => call.reply.ok(),
            _ => call.reply.null(),
        }
        if options.wants_old {
            call.count(had);
        }
    }
    call.turn.scratch = old;
    changed.map(|_| ())
}

/// `SETNX key value`.
pub(crate) fn setnx(call: &mut Call<'_>) -> Done {
    let (key, value) = (call.at(1), call.at(2));
    let changed = call.change(key, |seen, _| match seen {
        Some(_) => Edit::Keep,
        None => Edit::Put { value, flags: 0, expiry: Expiry::Default },
    })?;
    call.reply.flag(changed);
    Ok(())
}

/// `SETEX key seconds value`.
pub(crate) fn setex(call: &mut Call<'_>) -> Done {
    set_for(call, 1000)
}

/// `PSETEX key milliseconds value`.
pub(crate) fn psetex(call: &mut Call<'_>) -> Done {
    set_for(call, 1)
}

fn set_for(call: &mut Call<'_>, unit: i64) -> Done {
    let number = call.integer(2)?;
    let at = time(number, unit, call.turn.now).filter(|_| number > 0);
    let name = String::from_utf8_lossy(call.at(0));
    let at = at.ok_or_else(|| invalid_expire(&name))? as u64;
    let (key, value) = (call.at(1), call.at(3));
    call.change(key, |_, _| Edit::Put { value, flags: 0, expiry: Expiry::At(at) })?;
    call.reply.ok();
    Ok(())
}

/// Reads the value and changes the key at the same moment; the reply is the value before.
fn swap<'v>(call: &mut Call<'_>, mut decide: impl FnMut(Option<Seen<'_>>) -> Edit<'v>) -> Done {
    let mut old = std::mem::take(&mut call.turn.scratch);
    let mut had = false;
    let changed = call.change(call.at(1), |seen, _| {
        old.clear();
        had = seen.is_some();
        old.extend_from_slice(seen.map_or(&[], |seen| seen.value()));
        decide(seen)
    });
    if changed.is_ok() {
        if had {
            call.reply.bulk(&old)
        } else {
            call.reply.null()
        }
        call.count(had);
    }
    call.turn.scratch = old;
    changed.map(|_| ())
}

/// `GETSET key value`.
pub(crate) fn getset(call: &mut Call<'_>) -> Done {
    let value = call.at(2);
    swap(call, |_| Edit::Put { value, flags: 0, expiry: Expiry::Default })
}

/// `GETDEL key`.
pub(crate) fn getdel(call: &mut Call<'_>) -> Done {
    swap(call, |seen| if seen.is_some() { Edit::Delete } else { Edit::Keep })
}

/// `GETEX key [EX … | PX … | EXAT … | PXAT … | PERSIST]`.
pub(crate) fn getex(call: &mut Call<'_>) -> Done {
    let (mut ends, mut index) = (EndOptions::default(), 2);
    while index < call.len() {
        if !ends.read(call, &mut index, ("persist", End::Never))? {
            return Err(SYNTAX);
        }
        index += 1;
    }
    let wanted = match ends.end(call) {
        // As in Redis: where there is no key, nobody looks at the time.
        Err(_) if call.look(call.at(1))?.is_none() => {
            call.reply.null();
            call.count(false);
            return Ok(());
        }
        wanted => wanted?,
    };
    let now = call.turn.now;
    swap(call, |seen| match (seen, wanted) {
        (None, _) | (_, None | Some(End::Keep)) => Edit::Keep,
        (_, Some(End::At(at))) if at <= now => Edit::Delete,
        (_, Some(End::At(at))) => Edit::Touch { expires_ms: Some(at) },
        (Some(seen), Some(End::Never)) if seen.found.expires_ms.is_none() => Edit::Keep,
        (_, Some(End::Never)) => Edit::Touch { expires_ms: None },
    })
}

/// `DELEX key [IFEQ … | IFNE … | IFDEQ … | IFDNE …]`.
pub(crate) fn delex(call: &mut Call<'_>) -> Done {
    let mut index = 2;
    let condition = if call.len() == 2 {
        None
    } else {
        Some(ValueTest::read(call, &mut index)?.ok_or(SYNTAX)?)
    };
    if call.len() > index + 1 && condition.is_some() {
        return Err(SYNTAX);
    }
    let changed = call.change(call.at(1), |seen, _| {
        let holds = condition.is_none_or(|condition| condition.holds(seen.as_ref()));
        if seen.is_some() && holds { Edit::Delete } else { Edit::Keep }
    })?;
    call.reply.flag(changed);
    Ok(())
}

/// `DIGEST key`.
pub(crate) fn digest(call: &mut Call<'_>) -> Done {
    let mut value = Vec::new();
    match call.value(call.at(1), &mut value)? {
        Some(_) => call.reply.bulk(digest_of(&value).as_bytes()),
        None => call.reply.null(),
    }
    Ok(())
}

/// `MSET key value …`.
pub(crate) fn mset(call: &mut Call<'_>) -> Done {
    pairs(call)?;
    store_pairs(call)?;
    call.reply.ok();
    Ok(())
}

/// `MSETNX key value …`.
pub(crate) fn msetnx(call: &mut Call<'_>) -> Done {
    pairs(call)?;
    for index in (1..call.len()).step_by(2) {
        if call.look(call.at(index))?.is_some() {
            call.reply.flag(false);
            return Ok(());
        }
    }
    store_pairs(call)?;
    call.reply.flag(true);
    Ok(())
}

fn pairs(call: &Call<'_>) -> Done {
    if call.len() % 2 == 1 {
        return Ok(());
    }
    let name = String::from_utf8_lossy(call.at(0)).to_lowercase();
    Err(Wrong::says(format!("ERR wrong number of arguments for '{name}' command")))
}

/// Stores all pairs, or none.
fn store_pairs(call: &mut Call<'_>) -> Done {
    let pairs: Vec<_> =
        (1..call.len()).step_by(2).map(|index| (call.at(index), call.at(index + 1))).collect();
    let version = call.turn.server.keyspace.put_all(call.ts()?, &pairs, call.turn.now)?;
    call.turn.version = call.turn.version.max(version);
    Ok(())
}

/// The longest value that a command may make by parts, in bytes.
fn longest(call: &Call<'_>) -> usize {
    let bytes = &call.turn.server.settings.bulk_bytes;
    VALUE_MAX.min(bytes.load(std::sync::atomic::Ordering::Relaxed) as usize)
}

/// `APPEND key value`.
pub(crate) fn append(call: &mut Call<'_>) -> Done {
    let (key, value, longest) = (call.at(1), call.at(2), longest(call));
    let mut len = 0;
    call.change(key, |seen, scratch| {
        let before = seen.map_or(&[][..], |seen| seen.value());
        len = before.len() + value.len();
        if len > longest || seen.is_some() && value.is_empty() {
            return Edit::Keep;
        }
        scratch.extend_from_slice(before);
        scratch.extend_from_slice(value);
        remade(seen)
    })?;
    if len > longest {
        return Err(TOO_LONG);
    }
    call.reply.integer(len as i64);
    Ok(())
}

/// The value made in the scratch buffer, with flags and end as they were.
pub(crate) fn remade<'v>(seen: Option<Seen<'_>>) -> Edit<'v> {
    Edit::Make { flags: seen.map_or(0, |seen| seen.found.flags), expiry: kept(seen) }
}

/// The end as it was; that of a key that is new is for the tablespace to say.
fn kept(seen: Option<Seen<'_>>) -> Expiry {
    seen.map_or(Expiry::Default, |seen| Expiry::of_item(seen.found.expires_ms))
}

/// `STRLEN key`.
pub(crate) fn strlen(call: &mut Call<'_>) -> Done {
    let mut value = std::mem::take(&mut call.turn.scratch);
    value.clear();
    let found = call.value(call.at(1), &mut value);
    call.reply.integer(value.len() as i64);
    call.turn.scratch = value;
    found.map(|_| ())
}

/// `SETRANGE key offset value`.
pub(crate) fn setrange(call: &mut Call<'_>) -> Done {
    let (offset, value, longest) = (call.integer(2)?, call.at(3), longest(call));
    let offset = usize::try_from(offset).map_err(|_| Wrong::Is("ERR offset is out of range"))?;
    let mut len = 0;
    let end = offset.saturating_add(value.len());
    if !value.is_empty() && end > longest {
        return Err(TOO_LONG);
    }
    call.change(call.at(1), |seen, scratch| {
        let before = seen.map_or(&[][..], |seen| seen.value());
        len = before.len();
        if value.is_empty() {
            return Edit::Keep;
        }
        scratch.extend_from_slice(before);
        len = len.max(end);
        scratch.resize(len, 0);
        scratch[offset..end].copy_from_slice(value);
        remade(seen)
    })?;
    call.reply.integer(len as i64);
    Ok(())
}

/// `GETRANGE key start end`, and its old name `SUBSTR`.
pub(crate) fn getrange(call: &mut Call<'_>) -> Done {
    let (start, end) = (call.integer(2)?, call.integer(3)?);
    let mut value = std::mem::take(&mut call.turn.scratch);
    value.clear();
    let found = call.value(call.at(1), &mut value);
    if found.is_ok() {
        call.reply.bulk(part(&value, start, end));
    }
    call.turn.scratch = value;
    found.map(|_| ())
}

/// The bytes from `start` to `end`, both of them included; negative: from the end.
fn part(value: &[u8], start: i64, end: i64) -> &[u8] {
    let len = value.len() as i64;
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let from_end = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if len == 0 || start > end { &[] } else { &value[start as usize..=end as usize] }
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_of_strings() {
        let text = b"Hello World";
        let cases: [(i64, i64, &[u8]); 8] = [
            (0, 3, b"Hell"),
            (0, -1, b"Hello World"),
            (-4, -1, b"orld"),
            (5, 3, b""),
            (5, 5000, b" World"),
            (-5000, 10000, b"Hello World"),
            (-1, -5, b""),
            (i64::MIN, i64::MAX, b"Hello World"),
        ];
        for (start, end, expected) in cases {
            assert_eq!(part(text, start, end), expected, "{start} {end}");
        }
        assert_eq!(part(b"", 0, -1), b"");
    }
}

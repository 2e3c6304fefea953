//! `DUMP` and `RESTORE`: a value as Redis writes it to its files.

use crate::front::keyspace::{Edit, Expiry};
use crate::front::redis::command::{Call, Done, NOT_INTEGER, SYNTAX, Wrong};
use crate::front::redis::request::decimal;
use crate::rdb;

const BUSY: Wrong = Wrong::Is("BUSYKEY Target key name already exists.");

/// `DUMP key`.
pub(crate) fn dump(call: &mut Call<'_>) -> Done {
    let mut value = std::mem::take(&mut call.turn.scratch);
    value.clear();
    let found = call.value(call.at(1), &mut value);
    match found {
        Ok(Some(_)) => {
            call.reply.bulk_by(|out| {
                rdb::dump(&value, out);
                Some(())
            });
        }
        Ok(None) => call.reply.null(),
        Err(_) => {}
    }
    call.turn.scratch = value;
    found.map(|_| ())
}

/// The options of `RESTORE`.
#[derive(Default)]
struct Options {
    replaces: bool,
    is_absolute: bool,
    idle_s: Option<i64>,
    frequency: Option<i64>,
}

impl Options {
    fn read(call: &Call<'_>) -> Result<Options, Wrong> {
        let (mut options, mut index) = (Options::default(), 4);
        while index < call.len() {
            if call.is(index, "replace") {
                options.replaces = true;
            } else if call.is(index, "absttl") {
                options.is_absolute = true;
            } else if call.is(index, "idletime") && options.frequency.is_none() {
                let idle_s = decimal(call.after(&mut index)?).ok_or(NOT_INTEGER)?;
                let wrong = Wrong::Is("ERR Invalid IDLETIME value, must be >= 0");
                options.idle_s = Some(Some(idle_s).filter(|idle| *idle >= 0).ok_or(wrong)?);
            } else if call.is(index, "freq") && options.idle_s.is_none() {
                let frequency = decimal(call.after(&mut index)?).ok_or(NOT_INTEGER)?;
                let wrong = Wrong::Is("ERR Invalid FREQ value, must be >= 0 and <= 255");
                let frequency = Some(frequency).filter(|often| (0..256).contains(often));
                options.frequency = Some(frequency.ok_or(wrong)?);
            } else {
                return Err(SYNTAX);
            }
            index += 1;
        }
        Ok(options)
    }
}

/// `RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds | FREQ frequency]`. How long the
/// key was idle is not kept: it is used now.
pub(crate) fn restore(call: &mut Call<'_>) -> Done {
    let (options, key) = (Options::read(call)?, call.at(1));
    if !options.replaces && call.look(key)?.is_some() {
        return Err(BUSY);
    }
    let ttl_ms = call.integer(2)?;
    if ttl_ms < 0 {
        return Err(Wrong::Is("ERR Invalid TTL value, must be >= 0"));
    }
    let mut value = Vec::new();
    let restored = rdb::restore(call.at(3), &mut value);
    restored.map_err(|error| Wrong::says(format!("ERR {error}")))?;
    let (now, from) = (call.turn.now, if options.is_absolute { 0 } else { call.turn.now });
    let end = (ttl_ms > 0).then(|| from.saturating_add(ttl_ms as u64));
    let is_over = end.is_some_and(|end| end <= now);
    let mut is_busy = false;
    call.change(key, |seen, _| {
        is_busy = seen.is_some() && !options.replaces;
        match seen {
            _ if is_busy => Edit::Keep,
            None if is_over => Edit::Keep,
            Some(_) if is_over => Edit::Delete,
            // What never expires where it comes from does not expire here.
            _ => Edit::Put { value: &value, flags: 0, expiry: Expiry::of_item(end) },
        }
    })?;
    if is_busy {
        return Err(BUSY);
    }
    call.reply.ok();
    Ok(())
}

//! `REMORA.SCAN` and `REMORA.GET`: a walk that shows only the rows that a predicate selects, and a
//! read of one key if it does (docs/selection.md).

use crate::front::redis::command::{Call, Done, NOT_INTEGER, SYNTAX, Wrong};
use crate::front::redis::commands::scan::MOST;
use crate::front::redis::request::decimal;
use crate::select::Predicate;
use crate::select::condition::RowCondition;
use crate::select::mistake::Mistake;
use crate::select::plan::Plan;
use crate::select::schema::{Column, Schema};
use crate::select::selection::{Output, Selection};

/// Rows that one call looks at unless it says otherwise.
const COUNT: usize = 1000;
/// What a row takes in a reply beside its bytes, at most about.
const AROUND: usize = 32;

/// The options of a call, as they are written.
struct Asked<'a> {
    schema: Option<&'a str>,
    condition: Option<&'a str>,
    parameters: Vec<&'a str>,
    columns: Option<&'a str>,
    count: usize,
}

/// `REMORA.SCAN tablespace cursor SCHEMA schema [WHERE predicate] [PARAMETERS count value …]
/// [SELECT columns] [COUNT count]`. The reply is the cursor to go on from, and for each row its
/// key and the columns' values.
pub(crate) fn scan(call: &mut Call<'_>) -> Done {
    let name = text(call.at(1))?;
    let ts = call.turn.server.keyspace.known(name);
    let ts = ts.ok_or_else(|| Wrong::says(format!("ERR there is no tablespace `{name:.128}`")))?;
    let cursor: Option<u64> = text(call.at(2))?.parse().ok();
    let cursor = cursor.ok_or(Wrong::Is("ERR invalid cursor"))?;
    let asked = Asked::read(call, 3)?;
    let schema = asked.schema()?;
    let (selection, columns) = asked.selection(&schema)?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    let keyspace = call.turn.server.keyspace.clone();
    let now = call.turn.now;
    let next = keyspace.select(ts, cursor, asked.count, now, &selection, &mut |key, row| {
        bytes += key.len() + AROUND + shown(&columns, row);
        let has_room = call.reply.has_room(bytes);
        if has_room {
            let values = columns.iter().map(|column| column.show_bytes(row));
            rows.push((key.to_vec(), values.collect::<Vec<_>>()));
        }
        has_room
    })?;
    if !call.reply.has_room(bytes) {
        return call.overflow();
    }
    call.reply.array(2);
    call.reply.bulk(next.to_string().as_bytes());
    call.reply.array(rows.len());
    for (key, values) in rows {
        call.reply.array(1 + values.len());
        call.reply.bulk(&key);
        values.iter().for_each(|value| call.reply.bulk(value));
    }
    Ok(())
}

/// `REMORA.GET key SCHEMA schema [WHERE predicate] [PARAMETERS count value …] [SELECT columns]`.
/// The reply is the value, or with `SELECT` the columns' values; null where there is no such key,
/// or the predicate does not hold for its value.
pub(crate) fn get(call: &mut Call<'_>) -> Done {
    let asked = Asked::read(call, 2)?;
    let schema = asked.schema()?;
    let (selection, columns) = asked.selection(&schema)?;
    let plan = Plan::new(&selection).map_err(|error| Wrong::says(format!("ERR where: {error}")))?;
    let (ts, key, now) = (call.ts()?, call.at(1), call.turn.now);
    let mut value = std::mem::take(&mut call.turn.scratch);
    value.clear();
    let selected = call.turn.server.keyspace.get_where(ts, key, now, &plan, &mut value);
    call.count(selected.is_some());
    if selected != Some(true) {
        call.reply.null();
    } else if asked.columns.is_none() {
        call.reply.bulk(&value);
    } else if !call.reply.has_room(shown(&columns, &value)) {
        call.turn.scratch = value;
        return call.overflow();
    } else {
        call.reply.array(columns.len());
        for column in columns {
            call.reply.bulk(&column.show_bytes(&value));
        }
    }
    call.turn.scratch = value;
    Ok(())
}

/// What the columns' values of a row take in a reply, at most about.
fn shown(columns: &[Column], row: &[u8]) -> usize {
    columns.iter().map(|column| column.shown_len(row) + AROUND).sum()
}

impl<'a> Asked<'a> {
    /// Reads the options from argument `first` on.
    fn read(call: &Call<'a>, first: usize) -> Result<Asked<'a>, Wrong> {
        let (schema, condition, columns) = (None, None, None);
        let mut asked = Asked { schema, condition, parameters: Vec::new(), columns, count: COUNT };
        let mut index = first;
        while index < call.len() {
            if call.is(index, "schema") {
                asked.schema = Some(text(call.after(&mut index)?)?);
            } else if call.is(index, "where") {
                asked.condition = Some(text(call.after(&mut index)?)?);
            } else if call.is(index, "select") {
                asked.columns = Some(text(call.after(&mut index)?)?);
            } else if call.is(index, "parameters") {
                let count = decimal(call.after(&mut index)?).ok_or(NOT_INTEGER)?;
                asked.parameters.clear();
                for _ in 0..count {
                    asked.parameters.push(text(call.after(&mut index)?)?);
                }
            } else if call.is(index, "count") && first > 2 {
                let count = decimal(call.after(&mut index)?).ok_or(NOT_INTEGER)?;
                asked.count = usize::try_from(count).unwrap_or(0).min(MOST);
                if count < 1 {
                    return Err(SYNTAX);
                }
            } else {
                return Err(SYNTAX);
            }
            index += 1;
        }
        Ok(asked)
    }

    fn schema(&self) -> Result<Schema, Wrong> {
        let missing = Wrong::Is("ERR SCHEMA is missing: it says what a row's bytes mean");
        let told = self.schema.ok_or(missing)?;
        Schema::parse(told).map_err(|mistake| wrong("schema", told, &mistake))
    }

    /// What is selected, and the columns that are shown.
    fn selection(&self, schema: &Schema) -> Result<(Selection, Vec<Column>), Wrong> {
        let condition = match self.condition {
            None => RowCondition::ALWAYS,
            Some(text) => Predicate::parse(text)
                .and_then(|predicate| predicate.bind(schema, &self.parameters))
                .map_err(|mistake| wrong("where", text, &mistake))?,
        };
        let wanted = self.columns.unwrap_or("*");
        let output = Output::parse(wanted, schema);
        let columns = match output.map_err(|mistake| wrong("select", wanted, &mistake))? {
            Output::Whole => schema.columns().to_vec(),
            Output::Columns(_) => {
                let names = wanted.split(',').map(str::trim);
                names.filter_map(|name| schema.column(name).cloned()).collect()
            }
            Output::Aggregates(_) => {
                return Err(Wrong::Is(
                    "ERR a step of a walk has no aggregates: use `remora store scan` for them",
                ));
            }
        };
        let row_least = schema.fixed();
        let output = Output::Whole;
        Ok((Selection { row_least, condition, output, limit: u64::MAX }, columns))
    }
}

fn text(bytes: &[u8]) -> Result<&str, Wrong> {
    std::str::from_utf8(bytes).map_err(|_| Wrong::Is("ERR a name or a text is not UTF-8"))
}

/// A mistake in a text, in one line.
fn wrong(name: &str, text: &str, mistake: &Mistake) -> Wrong {
    let (line, column) = mistake.line_column(text);
    let says = mistake.says.replace(['\r', '\n'], " ");
    Wrong::says(format!("ERR {name}:{line}:{column}: {says}"))
}

//! Scans: rows that a selection picks next to the data, or aggregates over them.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use remora_store::client::StoreClient;
use remora_store::select::aggregate::Answer;
use remora_store::select::condition::RowCondition;
use remora_store::select::schema::{Column, Schema, Type};
use remora_store::select::selection::{Aggregate, Output, Selection};
use remora_store::way::connect::ClientOptions;
use serde_json::{Map, Value};

use super::dump::{PIECE, put_text};
use super::progress::Progress;
use super::{StoreArgs, condition, key_name, read_schema};
use crate::failure::wrong_line;
use crate::output;

/// `remora store scan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora store scan 127.0.0.2                                            all keys
  remora store scan 127.0.0.2 --schema orders.schema --where 'price < 24' --select 'id, price'
  remora store scan 127.0.0.2 --schema orders.schema --where 'price < $1' --parameter 24
  remora store scan 127.0.0.2 --schema orders.schema --select 'count, sum(price)'

The store judges rows next to the data; only what is asked for travels. docs/selection.md says what
a schema file and a predicate look like.")]
pub(super) struct Scan {
    #[command(flatten)]
    store: StoreArgs,
    /// A file that says what columns the values have
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// Which rows: a predicate
    #[arg(long = "where", value_name = "PREDICATE", requires = "schema")]
    condition: Option<String>,
    /// The value of $1 in the predicate, then of $2 and so on
    #[arg(long = "parameter", value_name = "VALUE", allow_hyphen_values = true)]
    #[arg(requires = "condition")]
    parameters: Vec<String>,
    /// What of them: columns, or count, sum(c), min(c), max(c), distinct(c) [default: all columns]
    #[arg(long, value_name = "LIST", requires = "schema")]
    select: Option<String>,
    /// The most rows to print: not for aggregates, which are over all
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// Print a line of JSON a row
    #[arg(long)]
    json: bool,
}

impl Scan {
    pub(super) fn run(self) -> Result<ExitCode> {
        match &self.schema {
            None => self.keys(),
            Some(path) => self.rows(&read_schema(path)?),
        }
    }

    /// All keys: without a schema, nothing is known of values.
    fn keys(&self) -> Result<ExitCode> {
        let mut out = BufWriter::new(output::out());
        let (mut failed, mut seen) = (None, Seen::new());
        let everything = Selection {
            row_least: 0,
            condition: RowCondition::ALWAYS,
            output: Output::Columns(Vec::new()),
            limit: self.limit,
        };
        self.store.with_options(&in_long_pieces(), |client| {
            Ok(client.scan(Some(&everything), |key, row| {
                seen.one(key, row);
                let line = match (self.json, std::str::from_utf8(key)) {
                    (true, Ok(text)) => Value::from(text).to_string(),
                    (true, Err(_)) => {
                        let mut object = Map::new();
                        put_text(&mut object, "key", key);
                        Value::from(object).to_string()
                    }
                    (false, _) => remora::printable(&String::from_utf8_lossy(key)).to_string(),
                };
                failed = failed.take().or(writeln!(out, "{line}").err());
            })?)
        })?;
        drop(seen);
        failed.map_or(Ok(()), Err)?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }

    fn rows(&self, schema: &Schema) -> Result<ExitCode> {
        let condition = match &self.condition {
            None => RowCondition::ALWAYS,
            Some(text) => condition::bound("where", text, schema, &self.parameters)?,
        };
        let wanted = self.select.as_deref().unwrap_or("*");
        let selected = Output::parse(wanted, schema)
            .map_err(|mistake| wrong_line(anyhow!(mistake.render("select", wanted))))?;
        let selection =
            Selection { row_least: schema.fixed(), condition, output: selected, limit: self.limit };
        match &selection.output {
            Output::Aggregates(_) if self.limit < u64::MAX => Err(wrong_line(anyhow!(
                "--limit is on the rows that come, and aggregates are over all that are selected: \
                leave it out"
            ))),
            Output::Aggregates(_) => self.aggregates(wanted, schema, &selection),
            Output::Whole => self.columns(schema.columns(), &selection),
            Output::Columns(_) => {
                self.columns(&projected(wanted, schema).map_err(wrong_line)?, &selection)
            }
        }
    }

    /// How many values are no rows of the schema, which selects none of them: counted where a
    /// person would else wonder, as nothing was `found`, or nothing but rows was asked for.
    fn skipped(&self, client: &mut StoreClient, row_least: u16, found: bool) -> Result<u64> {
        if found && self.condition.is_some() {
            return Ok(0);
        }
        let mut count = |row_least| -> Result<u64> {
            let (condition, limit) = (RowCondition::ALWAYS, u64::MAX);
            let output = Output::Aggregates(vec![Aggregate::Count]);
            let all = client.aggregate(&Selection { row_least, condition, output, limit })?;
            Ok(all.answers().map(|answer| if let Answer::Count(n) = answer { n } else { 0 }).sum())
        };
        // (Others may change some between the two.)
        Ok(count(0)?.saturating_sub(count(row_least)?))
    }

    fn columns(&self, columns: &[Column], selection: &Selection) -> Result<ExitCode> {
        let mut out = BufWriter::new(output::out());
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let of_keys = key_name(columns);
        // It is written once it is known that the scan can begin.
        let mut head = (!self.json).then(|| format!("{of_keys}\t{}\n", names.join("\t")));
        let (mut failed, mut seen) = (None, Seen::new());
        let (done, skipped) = self.store.with_options(&in_long_pieces(), |client| {
            let done = client.scan(Some(selection), |key, row| {
                seen.one(key, row);
                let shown = columns.iter().map(|column| column.show(row).to_string());
                let line = if self.json {
                    let names = columns.iter().map(|column| column.name.clone());
                    let mut object: Map<String, Value> =
                        names.zip(shown.map(Value::from)).collect();
                    put_text(&mut object, &of_keys, key);
                    Value::from(object).to_string()
                } else {
                    let fields: Vec<String> =
                        shown.map(|field| remora::printable(&field).to_string()).collect();
                    let key = String::from_utf8_lossy(key);
                    format!("{}\t{}", remora::printable(&key), fields.join("\t"))
                };
                let begun = head.take().map_or(Ok(()), |head| out.write_all(head.as_bytes()));
                failed = failed.take().or(begun.and_then(|()| writeln!(out, "{line}")).err());
            })?;
            Ok((done, self.skipped(client, selection.row_least, done.rows > 0)?))
        })?;
        drop(seen);
        failed.map_or(Ok(()), Err)?;
        head.map_or(Ok(()), |head| out.write_all(head.as_bytes()))?;
        out.flush()?;
        // What is no row of the schema is looked at, too.
        let (rows, keys) =
            (output::counted(done.rows, "row"), output::counted(done.looked_at, "key"));
        eprintln!("{rows} came, of {keys} looked at");
        tell_skipped(skipped);
        Ok(ExitCode::SUCCESS)
    }

    fn aggregates(&self, wanted: &str, schema: &Schema, selection: &Selection) -> Result<ExitCode> {
        let progress = Progress::new("Scanning", None);
        let (answers, skipped) = self.store.with(|client| {
            let answers = client.aggregate(selection)?;
            let found = answers.answers().any(is_something);
            Ok((answers, self.skipped(client, selection.row_least, found)?))
        })?;
        drop(progress);
        let names = wanted.split(',').map(str::trim);
        let shown: Vec<(&str, String)> = names
            .zip(answers.answers())
            .map(|(name, answer)| (name, show(name, answer, schema)))
            .collect();
        if self.json {
            let object: Map<String, Value> =
                shown.into_iter().map(|(name, value)| (name.into(), Value::from(value))).collect();
            output::json_line(&object)?;
        } else {
            let mut table = output::table(["aggregate", "answer"]);
            for (name, value) in shown {
                table.add_row([name.to_owned(), value]);
            }
            output::align_right(&mut table, [1]);
            println!("{table}");
        }
        tell_skipped(skipped);
        Ok(ExitCode::SUCCESS)
    }
}

/// Few rows do not fit an answer, and need calls of their own.
fn in_long_pieces() -> ClientOptions {
    ClientOptions { piece: PIECE, ..ClientOptions::default() }
}

/// Whether an aggregate says that there were rows.
fn is_something(answer: Answer) -> bool {
    !matches!(answer, Answer::Count(0) | Answer::Number(None | Some(0)))
        && answer != Answer::About(0.0)
}

fn tell_skipped(values: u64) {
    if values > 0 {
        eprintln!("{} skipped: no row of the schema", output::counted(values, "value"));
    }
}

/// How far a scan is, for a person who does not see the rows themselves.
struct Seen {
    progress: Option<Progress>,
    rows: u64,
    bytes: u64,
}

impl Seen {
    fn new() -> Seen {
        let shown = !io::stdout().is_terminal();
        let progress = shown.then(|| Progress::new("Scanning", None));
        Seen { progress, rows: 0, bytes: 0 }
    }

    /// A row has come.
    fn one(&mut self, key: &[u8], row: &[u8]) {
        (self.rows, self.bytes) = (self.rows + 1, self.bytes + (key.len() + row.len()) as u64);
        if let Some(progress) = &mut self.progress
            && self.rows.is_multiple_of(256)
        {
            progress.at(self.rows, self.bytes);
        }
    }
}

/// The columns of a list, where they lie in a row that has only them.
fn projected(wanted: &str, schema: &Schema) -> Result<Vec<Column>> {
    let mut offset = 0;
    let names: Vec<&str> = wanted.split(',').map(str::trim).collect();
    let mut columns = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let column = schema.column(name).with_context(|| format!("there is no column `{name}`"))?;
        if column.of == Type::Text && at + 1 < names.len() {
            bail!("`{name}` is a text of any length: name it as the last column");
        }
        columns.push(Column { offset, ..column.clone() });
        offset += column.of.width();
    }
    Ok(columns)
}

/// An aggregate's answer, as a person reads the column's values.
fn show(name: &str, answer: Answer, schema: &Schema) -> String {
    let argument = name.split_once('(').map(|(_, rest)| rest.trim_end_matches(')').trim());
    let column = argument.and_then(|argument| schema.column(argument));
    match answer {
        Answer::Count(count) => count.to_string(),
        Answer::About(about) => format!("{about:.0}"),
        Answer::Number(None) => "none".into(),
        Answer::Number(Some(number)) => match column.map(|column| column.of) {
            Some(Type::Decimal { scale, .. }) if scale > 0 => {
                let unit = 10i128.pow(scale.into());
                let sign = if number < 0 { "-" } else { "" };
                let (whole, rest) = (number.abs() / unit, number.abs() % unit);
                format!("{sign}{whole}.{rest:0width$}", width = usize::from(scale))
            }
            Some(Type::Date) if !name.starts_with("sum") => {
                let row = (number as i32).to_le_bytes();
                column.map_or_else(String::new, |column| {
                    Column { offset: 0, ..column.clone() }.show(&row).to_string()
                })
            }
            _ => number.to_string(),
        },
    }
}

//! Conditions on the command line: what has to hold of a value for it to be read or changed.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use remora_store::select::Predicate;
use remora_store::select::condition::RowCondition;
use remora_store::select::mistake::Mistake;
use remora_store::select::schema::Schema;
use remora_store::select::selection::{Output, Selection};
use remora_store::way::call::Condition;

use super::read_schema;
use crate::failure::wrong_line;

/// What a value has to be.
#[derive(Debug, Args)]
pub(super) struct Holds {
    /// Only if the value has this version
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["if_value", "if_where"])]
    if_version: Option<u64>,
    /// Only if the value is this one
    #[arg(long, value_name = "VALUE", conflicts_with = "if_where")]
    if_value: Option<String>,
    /// Only if the value is a row that passes this predicate
    #[arg(long, value_name = "PREDICATE", requires = "schema")]
    if_where: Option<String>,
    /// A file that says what columns the value has, for --if-where
    #[arg(long, value_name = "FILE", requires = "if_where")]
    schema: Option<PathBuf>,
    /// The value of $1 in the predicate, then of $2 and so on
    #[arg(long = "parameter", value_name = "VALUE", allow_hyphen_values = true)]
    #[arg(requires = "if_where")]
    parameters: Vec<String>,
}

impl Holds {
    /// The bytes of the predicate, if there is one.
    pub(super) fn plan(&self) -> Result<Vec<u8>> {
        let (Some(text), Some(path)) = (&self.if_where, &self.schema) else { return Ok(vec![]) };
        let schema = read_schema(path)?;
        let condition = bound("if-where", text, &schema, &self.parameters)?;
        let row_least = schema.fixed();
        let rows = Selection { row_least, condition, output: Output::Whole, limit: u64::MAX };
        Ok(rows.to_bytes()?)
    }

    /// The condition of a call; `plan` is what [`Holds::plan`] has answered.
    pub(super) fn condition<'a>(&'a self, plan: &'a [u8]) -> Condition<'a> {
        match (self.if_version, &self.if_value) {
            (Some(version), _) => Condition::Version(version),
            (None, Some(value)) => Condition::Value(value.as_bytes()),
            (None, None) if self.if_where.is_some() => Condition::Predicate(plan),
            (None, None) => Condition::None,
        }
    }
}

/// What a predicate is on rows of a schema. A mistake is shown in the text, which has a name.
pub(super) fn bound(
    name: &str,
    text: &str,
    schema: &Schema,
    parameters: &[String],
) -> Result<RowCondition> {
    let parameters: Vec<&str> = parameters.iter().map(String::as_str).collect();
    let told = |mistake: Mistake| wrong_line(anyhow!(mistake.render(name, text)));
    Predicate::parse(text).and_then(|read| read.bind(schema, &parameters)).map_err(told)
}

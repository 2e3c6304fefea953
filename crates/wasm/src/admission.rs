//! Whether a module is compiled: it has to be valid, the card has to offer its instructions, and a
//! node has to afford compiling it. `compile_cost` says what that costs.

use std::collections::BTreeSet;

use wasmparser::types::Types;
use wasmparser::{
    BinaryReaderError, DataKind, ElementKind, FuncToValidate, FuncValidatorAllocations,
    FunctionBody, Operator, OperatorsReader, Parser, Payload, ValidPayload, Validator,
    ValidatorResources, WasmFeatures, WasmModuleResources,
};

use crate::bulk::{Bulk, Counted, calls_host};
use crate::compile_cost::{self, FunctionCost};
use crate::error::LoadError;
use crate::limits::{COMPILE_MAX, PARTS_MAX};

/// Examines a module. Returns what is needed to count instructions that do more work than others,
/// if it has any.
///
/// # Errors
/// The module is not valid, has an instruction that is not offered, takes too long to compile, or
/// its instances take too long to set up.
pub(crate) fn admit(module: &[u8]) -> Result<Option<Counted>, LoadError> {
    let mut validator = Validator::new_with_features(features());
    let mut found = Found::default();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.map_err(invalid)?;
        if let Payload::TypeSection(types) = &payload {
            found.cost = compile_cost::types(types.clone()).map_err(invalid)?;
            if found.cost > COMPILE_MAX {
                return Err(LoadError::Compile("its types have too many parameters".into()));
            }
        }
        found.parts += parts_of(&payload).map_err(invalid)?;
        if found.parts > PARTS_MAX {
            return Err(LoadError::Parts);
        }
        match validator.payload(&payload).map_err(invalid)? {
            ValidPayload::Func(function, body) => found.examine(function, &body)?,
            ValidPayload::End(types) => return Ok(found.counted(&types)),
            ValidPayload::Ok | ValidPayload::Parser(_) => {}
        }
    }
    Err(LoadError::Invalid("it has no end".into()))
}

fn invalid(error: BinaryReaderError) -> LoadError {
    LoadError::Invalid(error.to_string())
}

/// What `engine` compiles, in the words of the parser.
fn features() -> WasmFeatures {
    let known = WasmFeatures::WASM2.difference(WasmFeatures::GC_TYPES);
    known.union(WasmFeatures::TAIL_CALL).union(WasmFeatures::EXTENDED_CONST)
}

/// What a section has that each new instance gets, one by one: globals, and segments that are
/// copied when it begins.
fn parts_of(payload: &Payload<'_>) -> Result<u32, BinaryReaderError> {
    let mut parts = 0;
    match payload {
        Payload::GlobalSection(globals) => parts = globals.count(),
        Payload::DataSection(segments) => {
            for segment in segments.clone() {
                parts += u32::from(matches!(segment?.kind, DataKind::Active { .. }));
            }
        }
        Payload::ElementSection(segments) => {
            for segment in segments.clone() {
                parts += u32::from(matches!(segment?.kind, ElementKind::Active { .. }));
            }
        }
        _ => {}
    }
    Ok(parts)
}

/// What was found so far.
#[derive(Default)]
struct Found {
    /// See [`parts_of`].
    parts: u32,
    cost: u64,
    /// The function that costs most.
    dearest: Option<FunctionCost>,
    bulk: BTreeSet<Bulk>,
    calls_host: bool,
    allocations: FuncValidatorAllocations,
}

impl Found {
    /// Examines a function, until it turns out to be too much.
    fn examine(
        &mut self,
        function: FuncToValidate<ValidatorResources>,
        body: &FunctionBody<'_>,
    ) -> Result<(), LoadError> {
        let passed = function.resources.sub_type_at(function.ty).map_or(0, compile_cost::passed);
        let mut validator = function.into_validator(core::mem::take(&mut self.allocations));
        let mut reader = body.get_binary_reader();
        validator.read_locals(&mut reader).map_err(invalid)?;
        let mut operators = OperatorsReader::new(reader);
        let mut cost = FunctionCost::new(validator.index(), validator.len_locals(), passed);
        while !operators.eof() {
            let (operator, offset) = operators.read_with_offset().map_err(invalid)?;
            if let Some(name) = refused(&operator) {
                return Err(LoadError::Instruction { name, function: validator.index() });
            }
            let (takes, gives) = operator.operator_arity(&validator).unwrap_or_default();
            cost.add(&operator, takes + gives, validator.operand_stack_height());
            if self.cost.saturating_add(cost.total()) > COMPILE_MAX {
                self.note(cost);
                return Err(self.too_much());
            }
            let is_first = match Bulk::of(&operator) {
                Some(bulk) => self.bulk.insert(bulk),
                None => calls_host(&operator) && !core::mem::replace(&mut self.calls_host, true),
            };
            self.cost += if is_first { compile_cost::COUNTED } else { 0 };
            validator.op(offset, &operator).map_err(invalid)?;
        }
        operators.finish().map_err(invalid)?;
        self.allocations = validator.into_allocations();
        self.note(cost);
        Ok(())
    }

    /// Notes what a function costs.
    fn note(&mut self, cost: FunctionCost) {
        self.cost = self.cost.saturating_add(cost.total());
        if self.dearest.as_ref().is_none_or(|dearest| dearest.total() < cost.total()) {
            self.dearest = Some(cost);
        }
    }

    fn too_much(&self) -> LoadError {
        let dearest = self.dearest.as_ref().map(ToString::to_string).unwrap_or_default();
        let many = format!("it counts more than {COMPILE_MAX}, and {dearest}");
        LoadError::Compile(many)
    }

    fn counted(self, types: &Types) -> Option<Counted> {
        let types = types.as_ref();
        let (type_index, first) = (types.core_type_count_in_module(), types.function_count());
        let bulk: Vec<Bulk> = self.bulk.into_iter().collect();
        let any = self.calls_host || !bulk.is_empty();
        any.then_some(Counted { bulk, type_index, first })
    }
}

/// The name of an operator that would do any amount of work for one instruction, and that
/// compilers do not emit unless they are asked to.
fn refused(operator: &Operator<'_>) -> Option<&'static str> {
    match operator {
        Operator::TableCopy { .. } => Some("table.copy"),
        Operator::TableFill { .. } => Some("table.fill"),
        Operator::TableInit { .. } => Some("table.init"),
        _ => None,
    }
}

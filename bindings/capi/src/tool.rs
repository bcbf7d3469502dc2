//! Tools that a program brings: declarations. Their calls come as steps.

use crate::boundary::{call, given_mut, invalid, output, value};
use crate::cast;
use crate::failure::Failure;
use crate::status::Status;
use broca::proto::session::narrow::{NarrowRule, NarrowRules};
use broca::proto::session::tool::{Tool as Declared, ToolDeclaration};
use broca_proto::{Error, Json};
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// A tool, as it is declared to the service.
pub struct Tool {
    declaration: ToolDeclaration,
    sequential: bool,
    timeout_ms: Option<u64>,
    approval: bool,
    rules: Vec<(String, NarrowRule)>,
}

impl Tool {
    pub(crate) fn declared(&self) -> Declared {
        Declared {
            declaration: self.declaration.clone(),
            sequential: self.sequential,
            timeout_ms: self.timeout_ms,
            approval: self.approval,
            narrow: NarrowRules::new(self.rules.clone()),
        }
    }
}

/// What an array of tools declares.
///
/// # Safety
/// As for [`cast::objects`].
pub(crate) unsafe fn declared(
    tools: *const *const Tool,
    count: usize,
) -> Result<Vec<Declared>, Error> {
    // SAFETY: the caller's promise is the same.
    let tools = unsafe { cast::objects("tools", tools, count) }?;
    Ok(tools.into_iter().map(Tool::declared).collect())
}

/// Makes a tool: its name, what it is for (the model reads it), and the JSON Schema of its arguments, `{}` when empty.
///
/// Ownership: returns `tool` owned: free it with `broca_tool_free`. Copies the texts.
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_tool_new(
    name: *const c_char,
    name_len: usize,
    description: *const c_char,
    description_len: usize,
    schema: *const c_char,
    schema_len: usize,
    tool: Option<&mut MaybeUninit<Option<Box<Tool>>>>,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let tool = output("tool", tool)?;
        // SAFETY: the header says what `name` and `name_len` are.
        let name = unsafe { cast::text("name", name, name_len) }?.to_owned();
        // SAFETY: the same of `description`.
        let description = unsafe { cast::text("description", description, description_len) }?;
        // SAFETY: the same of `schema`.
        let schema = unsafe { cast::bytes("schema", schema, schema_len) }?;
        if name.is_empty() {
            return Err(invalid("a tool needs a name"));
        }
        let input_schema = match schema {
            [] => Json::empty_object(),
            schema => Json::parse(schema.to_vec())
                .ok()
                .filter(Json::is_object)
                .ok_or_else(|| invalid(format!("tool \"{name}\": the schema is no JSON object")))?,
        };
        let description = (!description.is_empty()).then(|| description.to_owned());
        *tool = Some(Box::new(Tool {
            declaration: ToolDeclaration { name, description, input_schema },
            sequential: false,
            timeout_ms: None,
            approval: false,
            rules: Vec::new(),
        }));
        Ok(())
    })
}

/// Whether the tool never runs beside others of the same answer. Default: it does.
///
/// Ownership: borrows `tool`.
/// Threads: not concurrently on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_tool_set_sequential(
    tool: Option<&mut Tool>,
    sequential: i32,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        given_mut("tool", tool)?.sequential = sequential != 0;
        Ok(())
    })
}

/// How long a call may run, in milliseconds; then it is `timed_out_may_have_run`. Default: as long as the turn may pause.
///
/// Ownership: borrows `tool`.
/// Threads: not concurrently on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_tool_set_timeout_ms(
    tool: Option<&mut Tool>,
    timeout_ms: u64,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        given_mut("tool", tool)?.timeout_ms = Some(timeout_ms);
        Ok(())
    })
}

/// Whether somebody has to allow each call first (`BROCA_STEP_APPROVAL`). Default: nobody has to.
///
/// Ownership: borrows `tool`.
/// Threads: not concurrently on one object.
#[unsafe(no_mangle)]
pub extern "C" fn broca_tool_set_approval(
    tool: Option<&mut Tool>,
    approval: i32,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        given_mut("tool", tool)?.approval = approval != 0;
        Ok(())
    })
}

/// Says how an approval may narrow the argument at `pointer` (a JSON Pointer), by the name of a rule such as
/// `remove_elements`.
///
/// Ownership: borrows `tool`; copies the texts.
/// Threads: not concurrently on one object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn broca_tool_add_narrow_rule(
    tool: Option<&mut Tool>,
    pointer: *const c_char,
    pointer_len: usize,
    rule: *const c_char,
    rule_len: usize,
    err: Option<&mut MaybeUninit<Option<Box<Failure>>>>,
) -> Status {
    call(err, || {
        let tool = given_mut("tool", tool)?;
        // SAFETY: the header says what `pointer` and `pointer_len` are.
        let pointer = unsafe { cast::text("pointer", pointer, pointer_len) }?;
        // SAFETY: the same of `rule`.
        let word = unsafe { cast::text("rule", rule, rule_len) }?;
        let rule = NarrowRule::parse(word)
            .ok_or_else(|| invalid(format!("there is no narrowing rule \"{word}\"")))?;
        tool.rules.push((pointer.to_owned(), rule));
        Ok(())
    })
}

/// Frees a tool. NULL is fine. Sessions that were opened with it keep what they need.
///
/// Ownership: takes `tool`.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn broca_tool_free(tool: Option<Box<Tool>>) {
    value(|| drop(tool));
}

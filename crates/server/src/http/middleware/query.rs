//! Refusal of query strings on routes that take none, so that no caller assumes that a filter
//! was applied.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, PathItem, RefOr};

use crate::http::error::{Result, malformed};

/// Routes without query parameters in the OpenAPI document.
#[derive(Debug, Clone, Default)]
pub struct WithoutQuery(Arc<HashSet<(Method, String)>>);

impl WithoutQuery {
    /// Collects the routes from the document, by method and path.
    pub fn of(description: &OpenApi) -> Self {
        let routes = description.paths.paths.iter().flat_map(|(path, item)| {
            operations(item).filter(|(_, operation)| !takes_query(operation)).map(|(method, _)| (method, path.clone()))
        });
        Self(Arc::new(routes.collect()))
    }

    fn has(&self, method: &Method, path: &str) -> bool {
        let method = if *method == Method::HEAD { Method::GET } else { method.clone() };
        self.0.contains(&(method, path.to_owned()))
    }
}

fn operations(item: &PathItem) -> impl Iterator<Item = (Method, &Operation)> {
    let all = [
        (Method::GET, &item.get),
        (Method::PUT, &item.put),
        (Method::POST, &item.post),
        (Method::DELETE, &item.delete),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

fn takes_query(operation: &Operation) -> bool {
    operation.parameters.iter().flatten().any(|parameter| match parameter {
        RefOr::T(parameter) => parameter.parameter_in == ParameterIn::Query,
        // The parameter is defined elsewhere: assume that it is one of the query.
        RefOr::Ref(_) => true,
    })
}

/// Refuses a query on a route that takes none.
pub fn check(without: &WithoutQuery, request: &Request) -> Result<()> {
    let query = request.uri().query().filter(|query| !query.is_empty());
    match (query, request.extensions().get::<MatchedPath>()) {
        (Some(query), Some(path)) if without.has(request.method(), path.as_str()) => {
            let name: String =
                query.split(['=', '&']).next().unwrap_or_default().chars().take(NAME_CHARS_MAX).collect();
            Err(malformed(format!("the query: this route takes no parameters; leave out `{name}`")))
        }
        _ => Ok(()),
    }
}

/// Characters of a parameter's name that are repeated in the error.
const NAME_CHARS_MAX: usize = 64;
